"""``omni run PIPELINE``: one request, or an interactive chat when none is given."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click
from attrs import field, frozen

from omni_core.cli.errors import described
from omni_core.cli.pipeline_source import PipelineSource, parse_options
from omni_core.errors import OmniError
from omni_core.protocol.messages import OmniRequest

_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


@frozen
class Generation:
    """Everything about a reply that is not its messages."""

    params: dict[str, Any]
    modalities: list[str] | None
    metadata: dict[str, Any]
    timeout: float | None
    references: list[dict[str, Any]] = field(factory=list)

    def request(self, messages: list[dict[str, Any]]) -> OmniRequest:
        inputs: dict[str, Any] = {"messages": messages}
        if self.references:
            inputs["references"] = self.references
        return OmniRequest(inputs, self.params, self.modalities, self.metadata, timeout=self.timeout)


@click.command()
@click.argument("pipeline")
@click.option("--text", help="What to say to the model.")
@click.option("--image", multiple=True, type=_FILE, help="An image file; may be repeated.")
@click.option("--audio", multiple=True, type=_FILE, help="An audio file; may be repeated.")
@click.option("--video", multiple=True, type=_FILE, help="A video file; may be repeated.")
@click.option("--system", help="A system message.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the speech to this WAV file.")
@click.option("--speaker", help="The voice, by name.")
@click.option("--reference", multiple=True, type=_FILE, help="A recording of the voice to speak with; may be repeated.")
@click.option("--reference-text", multiple=True, help="What is said in the recording; one for each --reference.")
@click.option("--no-speech", is_flag=True, help="Text only.")
@click.option("--use-audio-in-video", is_flag=True, help="Listen to the videos' sound tracks too.")
@click.option("--seed", type=int, help="Seed of sampling.")
@click.option("--temperature", type=float, help="Sampling temperature of the text; 0 is greedy.")
@click.option("--top-k", type=int, help="Choose the text among the k likeliest tokens.")
@click.option("--top-p", type=float, help="Choose the text within this probability mass.")
@click.option("--max-tokens", type=int, help="At most so many tokens of text.")
@click.option("--talker-temperature", type=float, help="Sampling temperature of the speech; 0 is greedy.")
@click.option("--talker-max-tokens", type=int, help="At most so many frames of speech.")
@click.option("--timeout", type=float, help="Give up after so many seconds.")
@click.option("--model", help="A checkpoint folder or hub id.")
@click.option("--option", multiple=True, metavar="NAME=VALUE", help="An option of the pipeline; see `omni pipelines`.")
@click.option("--set", "settings", multiple=True, metavar="STAGE.FIELD=VALUE", help="Override one field of the config.")
@click.option(
    "--config", "overlay", type=click.Path(exists=True, dir_okay=False), help="A YAML overlay over the config."
)
@click.option(
    "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write where the time went to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def run(
    pipeline: str,
    text: str | None,
    image: tuple[Path, ...],
    audio: tuple[Path, ...],
    video: tuple[Path, ...],
    system: str | None,
    out: Path | None,
    trace: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run PIPELINE (a registered name or a config file). Without --text or media: an interactive chat."""
    one_shot = text is not None or image or audio or video
    if not one_shot and not sys.stdin.isatty():
        raise click.UsageError(
            "nothing to answer: give --text, --image, --audio or --video (or run it in a terminal to chat)"
        )
    if out is not None:
        if options["no_speech"]:
            raise click.UsageError("--out needs speech; leave --no-speech away")
        _check_folder("--out", out)
    if trace is not None:
        _check_folder("--trace", trace)
        if not one_shot:
            raise click.UsageError("--trace records one reply; give --text or a file")
    source = PipelineSource(
        pipeline, options["model"], parse_options(options["option"]), options["settings"], options["overlay"]
    )
    generation = _generation(options)
    from omni_core.cli.session import chat, one_reply  # the runtime is imported only when something runs

    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    if one_shot:
        parts = [
            {"type": kind, "path": str(path.absolute())}
            for kind, paths in (("image", image), ("audio", audio), ("video", video))
            for path in paths
        ]
        parts += [{"type": "text", "text": text}] if text is not None else []
        messages.append({"role": "user", "content": parts})
    try:
        # Outside the event loop, which would hear of a signal only after a download.
        config = source.resolve().config
        if one_shot:
            work = one_reply(config, source.notices, generation, messages, out, trace, as_json=as_json)
        else:
            work = chat(config, source.notices, generation, messages, out)
        asyncio.run(_until_terminated(work))
    except OmniError as error:
        if os.environ.get("OMNI_DEBUG") == "1":
            raise
        raise click.ClickException(described(error)) from error
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(128 + signal.SIGINT)
    except asyncio.CancelledError:
        click.echo("Terminated.", err=True)
        sys.exit(128 + signal.SIGTERM)


def _check_folder(option: str, path: Path) -> None:
    folder = path.absolute().parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise click.UsageError(f"{option} {path}: the folder {folder} does not exist or cannot be written")


async def _until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """``work``; SIGTERM cancels it, so that the pipeline ends in order."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work


def _generation(options: dict[str, Any]) -> Generation:
    def given(**names: str) -> dict[str, Any]:
        return {name: options[option] for name, option in names.items() if options[option] is not None}

    params: dict[str, Any] = {
        "thinker": given(temperature="temperature", top_k="top_k", top_p="top_p", max_new_tokens="max_tokens"),
        "talker": given(temperature="talker_temperature", max_new_tokens="talker_max_tokens"),
        **given(seed="seed"),
    }
    metadata = given(speaker="speaker")
    if options["use_audio_in_video"]:
        metadata["use_audio_in_video"] = True
    modalities = ["text"] if options["no_speech"] else None
    return Generation(params, modalities, metadata, options["timeout"], _references(options))


def _references(options: dict[str, Any]) -> list[dict[str, Any]]:
    """The voices to speak with. Whether a recording needs its text is the pipeline's to say."""
    files, texts = options["reference"], options["reference_text"]
    if len(texts) > len(files):
        raise click.UsageError(
            f"--reference-text: {len(texts)} texts for {len(files)} recordings; add --reference FILE"
        )
    references: list[dict[str, Any]] = [{"path": str(path.absolute())} for path in files]
    for reference, text in zip(references, texts, strict=False):
        reference["text"] = text
    return references
