"""``omni run PIPELINE``: one request, its message from flags or from standard input."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from omni_core.cli.config import with_source
from omni_core.cli.ending import signals_named, until_terminated
from omni_core.cli.media import MediaFile
from omni_core.cli.out import STANDARD_OUTPUT, check_folder, check_out
from omni_core.cli.request_command import (
    ARGUMENTS,
    MESSAGE,
    REPLY,
    RequestCommand,
    generation,
    section_option,
    source_of,
    with_request,
)
from omni_core.config.completion import completed
from omni_core.plugins import load_plugins

MOST_INPUT = 16 * 2**20
"""Bytes of a message from standard input."""


@click.command(cls=RequestCommand)
@with_source
@section_option(MESSAGE, "--text", help="What to say to the model; - reads it from standard input.")
@section_option(MESSAGE, "--image", multiple=True, type=MediaFile("image"), help="An image file; may be repeated.")
@section_option(MESSAGE, "--audio", multiple=True, type=MediaFile("audio"), help="An audio file; may be repeated.")
@section_option(MESSAGE, "--video", multiple=True, type=MediaFile("video"), help="A video file; may be repeated.")
@with_request
@section_option(
    REPLY, "--out", type=click.Path(path_type=Path), help="Write the speech to this WAV file; - is standard output."
)
@section_option(REPLY, "--json", "as_json", is_flag=True, help="Print one JSON document, errors included, not text.")
@section_option(REPLY, "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a trace to this file.")
@section_option("Chat", "--play", is_flag=True, help="Play speech as it comes.")
@section_option("Chat", "--mic", is_flag=True, help="Enter on an empty line records a turn.")
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Run PIPELINE: a registered name, a checkpoint folder, a hub id or a config file. The message may come from standard input.
    Without one, in a terminal: a chat (`omni chat`, of omni-terminal)."""
    text, out, trace, as_json = (options[name] for name in ("text", "out", "trace", "as_json"))
    media = [(kind, path) for kind in ("image", "audio", "video") for path in options[kind]]
    if text is None and not media and sys.stdin is not None and sys.stdin.isatty():
        _chat(context, options)
        return
    for flag in ("play", "mic"):
        if options[flag]:
            pipe = "; pipe the speech of one reply into a player: --out - | aplay -" if flag == "play" else ""
            raise click.UsageError(f"--{flag} is for a chat, which begins without a message{pipe}")
    if out is not None:
        check_out(out, no_speech=options["no_speech"])
        if out == STANDARD_OUTPUT and as_json:
            raise click.UsageError("--json and --out - both write to standard output; name a file with --out")
    if trace is not None:
        check_folder("--trace", trace)
    if text == "-" or (text is None and not media):
        text = _standard_input()
    source = source_of(options)
    request = generation(context, options)
    parts = [{"type": kind, "path": str(path.absolute())} for kind, path in media]
    parts += [{"type": "text", "text": text}] if text is not None else []
    system = [{"role": "system", "content": options["system"]}] if options["system"] else []
    messages: list[dict[str, Any]] = [*system, {"role": "user", "content": parts}]
    with signals_named():
        config = source.resolve().config
        outputs = config.interface.outputs if config.interface is not None else []
        if out is not None and outputs and "audio" not in outputs:
            raise click.UsageError(f"--out writes speech; {source.name} answers in {', '.join(outputs)} only")
        from omni_core.cli.session import one_reply  # the runtime is imported only when something runs
        from omni_core.coordinator.admission import admission

        admission(config, load_plugins())(request.request(messages))  # a wrong value fails before the stages start
        config = completed(config)  # outside the event loop: a download must hear of Ctrl-C
        work = one_reply(config, source.notices, request, messages, out, trace, as_json=as_json)
        asyncio.run(until_terminated(work))


def _chat(context: click.Context, options: dict[str, Any]) -> None:
    """Run the command ``chat``, which a plugin provides, with the same arguments."""
    for flag, value in (("--json", options["as_json"]), ("--trace", options["trace"])):
        if value:
            raise click.UsageError(f"{flag} is for one reply; give --text or a file")
    if "chat" not in load_plugins().names("omni_commands") or context.parent is None:
        raise click.UsageError("nothing to answer: give --text or a file. For a chat: pip install omni-terminal")
    group = context.parent.command
    assert isinstance(group, click.Group)
    chat = group.get_command(context.parent, "chat")
    assert chat is not None
    chat.main(args=context.meta[ARGUMENTS], prog_name="omni chat", standalone_mode=False)


def _standard_input() -> str:
    """Read the message from standard input.

    Raises:
        click.UsageError: it is empty, too long, or no text.
    """
    given = sys.stdin.buffer.read(MOST_INPUT + 1) if sys.stdin is not None else b""
    if len(given) > MOST_INPUT:
        raise click.UsageError(f"the message on standard input is longer than {MOST_INPUT >> 20} MiB")
    try:
        text = given.decode().strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the message on standard input is not UTF-8 text: {error}") from None
    if not text:
        raise click.UsageError("nothing to answer: standard input is empty; give --text, --image, --audio or --video")
    return text
