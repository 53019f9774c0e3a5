"""``omni batch INPUT OUTPUT PIPELINE``: the flags, the checks before the start, and the summary."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from omni_cli.batch.journal import Journal
from omni_cli.batch.lines import parse, read_lines
from omni_cli.batch.progress import BatchProgress
from omni_cli.deploy.options import source_of
from omni_cli.request.command import (
    REPLY,
    RequestCommand,
    generation,
    section_option,
    with_request,
)
from omni_cli.request.generation import Generation
from omni_cli.request.out import check_folder
from omni_core.api import PipelineConfig, load_plugins
from omni_core.runtime_api import completed, signals_named, until_terminated, with_source


@click.command(cls=RequestCommand)
@click.argument("source", metavar="INPUT", type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path))
@click.argument("target", metavar="OUTPUT", type=click.Path(dir_okay=False, path_type=Path))
@with_source
@with_request
@section_option(
    REPLY, "--audio-dir", type=click.Path(file_okay=False, path_type=Path), help="Where speech goes.  [OUTPUT-audio]"
)
@section_option(REPLY, "--at-once", type=click.IntRange(1), help="Requests at once.  [max_in_flight of the pipeline]")
@section_option("Message", "--allow-urls", is_flag=True, help="Fetch media that a line names by http or https.")
@click.pass_context
def batch(context: click.Context, /, source: Path, target: Path, audio_dir: Path | None, **options: Any) -> None:
    """Answer every line of INPUT, a JSONL file, and append the answers to OUTPUT in the same order.

    A line is {"text": ...} or {"messages": [...]} with further arguments of a chat, or a line of OpenAI's batch files. The same
    command goes on where it was stopped, even by a kill.
    """
    check_folder("OUTPUT", target)
    if target.exists() and target.samefile(source):
        raise click.UsageError("INPUT and OUTPUT are the same file")
    if audio_dir is not None and options["no_speech"]:
        raise click.UsageError("--audio-dir is for speech; remove --no-speech")
    pipeline = source_of(options)
    request = generation(context, options)
    total = sum(1 for _ in read_lines(source))
    with signals_named():
        from omni_core.runtime_api import admission  # the runtime is imported only when something runs

        resolved = pipeline.resolve()
        config = resolved.config
        if (options["at_once"] or 0) > config.max_in_flight:
            raise click.UsageError(
                f"--at-once {options['at_once']}: the pipeline holds {config.max_in_flight} requests at once; "
                f"for more, add --set max_in_flight={options['at_once']}"
            )
        admission(config, load_plugins())(request.request([]))  # a wrong value fails before the stages start
        for kind in ("image", "video"):
            if config.interface is not None and kind in config.interface.outputs:
                raise click.UsageError(
                    f"{pipeline.name} answers with {kind}s, which a batch does not keep; use omni run --out, or Python"
                )
        journal = Journal(target)
        try:
            left = journal.resume(read_lines(source))
            if journal.done < total:
                if journal.done:
                    click.echo(f"{target} holds {journal.done} of {total} answers; going on", err=True)
                for notice in pipeline.notices:
                    click.echo(notice, err=True)
                speaks = config.interface is None or "audio" in config.interface.outputs
                if not speaks or request.modalities == ["text"]:
                    audio_dir = None
                else:
                    audio_dir = audio_dir or target.with_name(f"{target.stem}-audio")
                config = completed(config, resolved.located)  # outside the event loop: a download must hear of Ctrl-C
                work = _answered(config, request, options, left, journal, total, audio_dir)
                try:
                    asyncio.run(until_terminated(work))
                except BaseException:
                    click.echo(f"{journal.done} of {total} lines are answered; the same command goes on", err=True)
                    raise
        finally:
            journal.close()
    errors = f", {journal.failed} of them by an error" if journal.failed else ""
    click.echo(f"{target}: {journal.done} lines answered{errors}", err=True)
    sys.exit(1 if journal.failed else 0)


async def _answered(
    config: PipelineConfig,
    request: Generation,
    options: dict[str, Any],
    left: Iterator[tuple[int, bytes]],
    journal: Journal,
    total: int,
    audio_dir: Path | None,
) -> None:
    """Start the pipeline, answer the lines that are left, and end it."""
    from omni_cli.batch.answering import answer_in_order
    from omni_cli.batch.answers import Answerer
    from omni_cli.request.display import Display
    from omni_core.api import MediaPolicy, open_async

    if audio_dir is not None:
        audio_dir.mkdir(parents=True, exist_ok=True)
    at_once = options["at_once"] or config.max_in_flight
    with Display() as display:
        media = MediaPolicy(allow_urls=options["allow_urls"])
        async with open_async(config, media=media, on_progress=display.stage) as pipe:
            display.clear()
            answer = Answerer(pipe, _defaults(request, options["system"]), audio_dir, config.resolved_name)
            with BatchProgress(total, journal.done) as progress:

                def write(answers: list[dict[str, Any]]) -> None:
                    journal.append(answers)
                    progress.update(journal.done, journal.failed)

                lines = (parse(number, text) for number, text in left)
                await answer_in_order(lines, answer, write, at_once=at_once)


def _defaults(request: Generation, system: str | None) -> dict[str, Any]:
    """Return the flags as arguments of ``AsyncPipe.chat``."""
    from omni_core.api import Recording

    voices = [Recording(each["path"], each.get("text")) for each in request.references]
    found = {
        "system": system,
        "modalities": request.modalities,
        "timeout": request.timeout,
        "voice": voices or None,
        "params": request.params,
        "metadata": request.metadata,
    }
    return {name: value for name, value in found.items() if value}
