"""``omni run PIPELINE``: one request, its message from flags or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from omni_cli.request.command import (
    ARGUMENTS,
    MESSAGE,
    REPLY,
    RequestCommand,
    generation,
    section_option,
    with_request,
)
from omni_cli.request.media import MediaFile
from omni_cli.request.out import (
    STANDARD_OUTPUT,
    check_folder,
    check_image_out,
    check_out,
    check_video_out,
    written_to,
)
from omni_core.api import load_plugins
from omni_core.runtime_api import (
    given_text,
    message_argument,
    signals_named,
    standard_input,
    until_terminated,
    with_source,
)

CHECKS: dict[str, Callable[[Path], None]] = {"image": check_image_out, "video": check_video_out}
"""Checks of the file for each kind of output."""


@click.command(cls=RequestCommand)
@with_source
@message_argument
@section_option(MESSAGE, "--text", help="What to say to the model, as MESSAGE; - reads it from standard input.")
@section_option(MESSAGE, "--image", multiple=True, type=MediaFile("image"), help="An image file; may be repeated.")
@section_option(MESSAGE, "--audio", multiple=True, type=MediaFile("audio"), help="An audio file; may be repeated.")
@section_option(MESSAGE, "--video", multiple=True, type=MediaFile("video"), help="A video file; may be repeated.")
@with_request
@section_option(
    REPLY,
    "--out",
    type=click.Path(path_type=Path),
    help="Write the speech, image or video to this file, in the format of its suffix; - is standard output, speech as WAV.",
)
@section_option(REPLY, "--json", "as_json", is_flag=True, help="Print one JSON document, errors included, not text.")
@section_option(REPLY, "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a trace to this file.")
@section_option("Chat", "--play", is_flag=True, help="Play speech as it comes.")
@section_option("Chat", "--mic", is_flag=True, help="Enter on an empty line records a turn.")
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Run PIPELINE: a registered name, a deploy file or preset, a checkpoint or its hub id. MESSAGE may come from standard input.
    Without one, in a terminal: a chat (`omni chat`)."""
    text = given_text(options)
    out, trace, as_json = (options[name] for name in ("out", "trace", "as_json"))
    media = [(kind, path) for kind in ("image", "audio", "video") for path in options[kind]]
    if text is None and not media and sys.stdin is not None and sys.stdin.isatty():
        _chat(context, options)
        return
    for flag in ("play", "mic"):
        if options[flag]:
            pipe = "; pipe the speech of one reply into a player: --out - | aplay -" if flag == "play" else ""
            raise click.UsageError(f"--{flag} is for a chat, which begins without a message{pipe}")
    written = written_to(out)
    if out is not None:
        if written == "audio":
            check_out(out, no_speech=options["no_speech"])
        else:
            CHECKS[written](out)
        if out == STANDARD_OUTPUT and as_json:
            raise click.UsageError("--json and --out - both write to standard output; name a file with --out")
    if trace is not None:
        check_folder("--trace", trace)
    if text == "-" or (text is None and not media):
        text = standard_input()
    from omni_cli.deploy.options import source_of  # `--help` need not wait for configs

    source = source_of(options)
    request = generation(context, options)
    parts = [{"type": kind, "path": str(path.absolute())} for kind, path in media]
    parts += [{"type": "text", "text": text}] if text is not None else []
    system = [{"role": "system", "content": options["system"]}] if options["system"] else []
    messages: list[dict[str, Any]] = [*system, {"role": "user", "content": parts}]
    with signals_named():
        resolved = source.resolve()
        config = resolved.config
        outputs = config.interface.outputs if config.interface is not None else []
        if out is not None and outputs and written not in outputs:
            for kind in CHECKS.keys() & outputs:  # says which files it writes
                CHECKS[kind](out)
            what = {"image": "an image", "video": "a video"}.get(written, "speech")
            raise click.UsageError(f"--out {out} writes {what}; {source.name} answers in {', '.join(outputs)} only")
        import asyncio  # and the runtime: they are imported only when something runs

        from omni_cli.request.session import one_reply
        from omni_core.runtime_api import admission, completed

        admission(config, load_plugins())(request.request(messages))  # a wrong value fails before the stages start
        config = completed(config, resolved.located)  # outside the event loop: a download must hear of Ctrl-C
        work = one_reply(config, source.notices, request, messages, out, trace, as_json=as_json)
        asyncio.run(until_terminated(work))


def _chat(context: click.Context, options: dict[str, Any]) -> None:
    """Run the command ``chat`` with the same arguments."""
    for flag, value in (("--json", options["as_json"]), ("--trace", options["trace"])):
        if value:
            raise click.UsageError(f"{flag} is for one reply; give --text or a file")
    from omni_cli.chat.command import chat

    chat.main(args=context.meta[ARGUMENTS], prog_name="omni chat", standalone_mode=False)
