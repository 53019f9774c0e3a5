"""``omni chat PIPELINE``: the flags, the checks before the start, and the end."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from omni_cli.deploy.options import source_of
from omni_cli.request.command import (
    REPLY,
    RequestCommand,
    generation,
    section_option,
    with_request,
)
from omni_cli.request.generation import Generation
from omni_cli.request.out import STANDARD_OUTPUT, check_out
from omni_cli.sound_device import Player, open_sounddevice
from omni_core.api import PipelineConfig, load_plugins
from omni_core.runtime_api import completed, signals_named, until_terminated, with_source


@click.command(cls=RequestCommand)
@with_source
@with_request
@section_option(
    REPLY, "--out", type=click.Path(path_type=Path), help="Save speech, numbered by turn: FILE-1.wav, FILE-2.wav, ..."
)
@section_option(REPLY, "--play", is_flag=True, help="Play speech as it comes.")
@section_option("Message", "--mic", is_flag=True, help="Enter on an empty line records a turn.")
@click.pass_context
def chat(context: click.Context, /, out: Path | None, play: bool, mic: bool, **options: Any) -> None:
    """Chat with PIPELINE: a registered name, a deploy file, a checkpoint or its hub id. /help lists the commands within a chat."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("a chat needs a terminal; in a script: echo MESSAGE | omni run PIPELINE")
    if out == STANDARD_OUTPUT:
        raise click.UsageError(
            "--out - is for one reply (`omni run PIPELINE --text ...`); in a chat --out names a file"
        )
    if out is not None:
        check_out(out, no_speech=options["no_speech"])
    player = partial(Player, open_sounddevice("--play", "output")) if play else None
    if mic:
        open_sounddevice("--mic", "input")
    source = source_of(options)
    request = generation(context, options)
    with signals_named():
        from omni_core.runtime_api import admission  # the runtime is imported only when something runs

        resolved = source.resolve()
        config = resolved.config
        outputs = config.interface.outputs if config.interface is not None else []
        for flag in (("--out",) if out is not None else ()) + (("--play",) if play else ()):
            if outputs and "audio" not in outputs:
                raise click.UsageError(f"{flag} is for speech; {source.name} answers in {', '.join(outputs)} only")
        from omni_cli.chat.session import no_recordings

        if mic and (problem := no_recordings(config.interface)):
            raise click.UsageError(f"--mic: {problem}")
        admission(config, load_plugins())(request.request([]))  # a wrong value fails before the stages start
        config = completed(config, resolved.located)  # outside the event loop: a download must hear of Ctrl-C
        work = converse(config, source.notices, request, system=options["system"], out=out, player=player, mic=mic)
        asyncio.run(until_terminated(work))


async def converse(
    config: PipelineConfig,
    notices: list[str],
    request: Generation,
    *,
    system: str | None,
    out: Path | None,
    player: partial[Player] | None,
    mic: bool,
) -> None:
    """Start the pipeline, chat, and end it."""
    from omni_cli.chat.numbered_files import numbered_files
    from omni_cli.chat.prompt import Prompt, quiet_terminal
    from omni_cli.chat.screen import Screen
    from omni_cli.chat.session import Session
    from omni_cli.chat.slash import SlashCompleter
    from omni_core.api import open_async

    with quiet_terminal(), Screen() as screen:
        for notice in notices:
            screen.warning(notice)
        async with open_async(config, on_progress=screen.stage) as pipe:
            screen.clear()
            session = Session(
                pipe,
                config.interface,
                request,
                screen,
                system=system,
                files=numbered_files(out) if out is not None else None,
                player=player,
                mic=mic,
            )
            hint = "Write a message; /help lists commands" + ("; Enter records" if mic else "")
            await session.run(Prompt(SlashCompleter(lambda: session.voices), session.attached, hint))
