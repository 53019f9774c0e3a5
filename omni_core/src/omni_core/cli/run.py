"""``omni run PIPELINE``: one request, or an interactive chat when none is given."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from omni_core.cli.config import with_source
from omni_core.cli.generation import Generation, set_at
from omni_core.cli.parameter_flags import GIVEN, SectionOption, parameter_flags
from omni_core.client.source import PipelineSource, parse_options
from omni_core.config.completion import completed
from omni_core.config.loading import parse_assignment
from omni_core.errors import OmniError
from omni_core.plugins import load_plugins

Function = TypeVar("Function", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
_FLAGS = "omni_core.cli.run.flags"
_MESSAGE, _REPLY, _PIPELINE = "Message", "Reply", "Pipeline"


def _option(section: str, *names: str, **attributes: Any) -> Callable[[Function], Function]:
    return click.option(*names, cls=SectionOption, section=section, **attributes)


@contextmanager
def _failures(as_json: bool) -> Iterator[None]:
    """Print a deliberate error as a JSON document to standard output, if that is wanted, and end with its exit code."""
    try:
        yield
    except (OmniError, click.ClickException) as error:
        if not as_json or os.environ.get("OMNI_DEBUG") == "1":
            raise
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        document = {"type": getattr(error, "error_type", type(error).__name__), "message": message}
        for name in ("stage", "request_id", "retry_after"):
            if getattr(error, name, None) is not None:
                document[name] = getattr(error, name)
        click.echo(json.dumps({"error": document}, default=str))
        sys.exit(getattr(error, "exit_code", 1))


class RunCommand(click.Command):
    """A command whose flags include those that the named pipeline declares."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(_FLAGS, [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _failures("--json" in args):
            name, interface = self._pipeline_in(args), None
            with suppress(*([OmniError] if ctx.resilient_parsing else [])):  # completion guesses from what is there
                interface = None if name is None else PipelineSource(name).interface()
            taken = {flag for each in super().get_params(ctx) for flag in each.opts}
            ctx.meta[_FLAGS] = [] if interface is None else list(parameter_flags(interface, taken))
            try:
                return super().parse_args(ctx, args)
            except click.NoSuchOption as error:
                if name is None or error.possibilities:
                    raise
                hint = "declares no parameters; use --param" if interface is None else "has others; see its --help"
                message = f"No such option {error.option_name}: {name} {hint}."
                raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None

    def _pipeline_in(self, args: list[str]) -> str | None:
        """Find the pipeline's name among arguments whose flags are not all known yet."""
        probe = click.Context(self, resilient_parsing=True, ignore_unknown_options=True)
        options: list[click.Parameter] = [each for each in self.params if isinstance(each, click.Option)]
        parser = click.Command(None, params=options, add_help_option=False).make_parser(probe)
        _, rest, _ = parser.parse_args([*args])
        names = [each for each in rest if not each.startswith("-")]
        return next((each for each in names if PipelineSource(each).exists()), names[0] if names else None)

    def invoke(self, ctx: click.Context) -> Any:
        with _failures(ctx.params["as_json"]):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {_MESSAGE: [], _REPLY: []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None and isinstance(each, click.Option):
                sections.setdefault(getattr(each, "section", _PIPELINE), []).append(record)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)
        if not ctx.meta.get(_FLAGS):
            formatter.write_paragraph()
            formatter.write_text("`omni run PIPELINE --help` adds the parameters of that pipeline.")


@click.command(cls=RunCommand)
@with_source
@_option(_MESSAGE, "--text", help="What to say to the model.")
@_option(_MESSAGE, "--image", multiple=True, type=_FILE, help="An image file; may be repeated.")
@_option(_MESSAGE, "--audio", multiple=True, type=_FILE, help="An audio file; may be repeated.")
@_option(_MESSAGE, "--video", multiple=True, type=_FILE, help="A video file; may be repeated.")
@_option(_MESSAGE, "--system", help="A system message.")
@_option(_MESSAGE, "--reference", multiple=True, type=_FILE, help="A recording of the voice; may be repeated.")
@_option(_MESSAGE, "--reference-text", multiple=True, help="The words of the recording; one for each --reference.")
@_option(_REPLY, "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the speech to this WAV file.")
@_option(_REPLY, "--no-speech", is_flag=True, help="Text only.")
@_option(_REPLY, "--json", "as_json", is_flag=True, help="Print one JSON document, errors included, instead of text.")
@_option(_REPLY, "--timeout", type=click.FloatRange(0, min_open=True), help="Give up after so many seconds.")
@_option(_REPLY, "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a trace to this file.")
@_option(_REPLY, "--param", multiple=True, metavar="KEY=VALUE", help="A parameter of the request: GROUP.NAME or NAME.")
@_option(_REPLY, "--metadata", multiple=True, metavar="KEY=VALUE", help="A key of the request's metadata.")
@click.pass_context
def run(
    context: click.Context,
    /,
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
    """Run PIPELINE: a registered name, a checkpoint folder or a config file. Without --text or media: an interactive chat."""
    one_shot = text is not None or image or audio or video
    if not one_shot and not sys.stdin.isatty():
        raise click.UsageError("nothing to answer: give --text, --image, --audio or --video (in a terminal: chat)")
    if out is not None:
        if options["no_speech"]:
            raise click.UsageError("--out writes speech; remove --no-speech")
        _check_folder("--out", out)
    if trace is not None:
        _check_folder("--trace", trace)
        if not one_shot:
            raise click.UsageError("--trace records one reply; give --text or a file")
    given = parse_options(options["option"])
    source = PipelineSource(pipeline, options["model"], given, options["settings"], options["overlay"])
    generation = _generation(context.meta.get(GIVEN, {}), options)
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
        config = completed(source.resolve().config)
        outputs = config.interface.outputs if config.interface is not None else []
        if out is not None and outputs and "audio" not in outputs:
            raise click.UsageError(f"--out writes speech; {pipeline} answers in {', '.join(outputs)} only")
        from omni_core.cli.session import chat, one_reply  # the runtime is imported only when something runs
        from omni_core.coordinator.admission import admission

        admission(config, load_plugins())(generation.request(messages))  # a wrong value fails before the stages start
        if one_shot:
            work = one_reply(config, source.notices, generation, messages, out, trace, as_json=as_json)
        else:
            work = chat(config, source.notices, generation, messages, out)
        asyncio.run(_until_terminated(work))
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
    """Await ``work``; SIGTERM cancels it, so that the pipeline ends in order."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work


def _generation(given: dict[str, Any], options: dict[str, Any]) -> Generation:
    """Join what the pipeline's own flags have set (``given``) with ``--param`` and ``--metadata``."""
    for text in options["param"]:
        key, value = parse_assignment("--param", text, "KEY=VALUE")
        set_at(given, ("params", *key.split(".")), value, "--param")
    for text in options["metadata"]:
        key, value = parse_assignment("--metadata", text, "KEY=VALUE")
        set_at(given, ("metadata", key), value, "--metadata")
    params, metadata = given.get("params", {}), given.get("metadata", {})
    modalities = ["text"] if options["no_speech"] else None
    return Generation(params, modalities, metadata, options["timeout"], _references(options))


def _references(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the voices to speak with. The pipeline decides whether a recording needs its text."""
    files, texts = options["reference"], options["reference_text"]
    if len(texts) > len(files):
        raise click.UsageError(f"--reference-text: {len(texts)} texts, {len(files)} recordings; add --reference FILE")
    references: list[dict[str, Any]] = [{"path": str(path.absolute())} for path in files]
    for reference, text in zip(references, texts, strict=False):
        reference["text"] = text
    return references
