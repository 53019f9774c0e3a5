"""``omni run PIPELINE``: one message in, one reply out. A plugin's command of this name may have more flags."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click

from omni_core.cli.ending import signals_named, until_terminated
from omni_core.cli.logs import log_options
from omni_core.cli.request import assign, given_text, message_argument, standard_input
from omni_core.cli.source import source_of, with_source
from omni_core.config.completion import completed
from omni_core.config.schema import PipelineConfig
from omni_core.plugins import load_plugins
from omni_core.plugins.advice import comes_with
from omni_core.protocol.messages import OmniRequest


def _more() -> str:
    """Return what the command of this name with more flags comes with."""
    return comes_with("commands", "run", records=load_plugins().records)


class _Run(click.Command):
    """A command whose missing flags are those of another distribution."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            message = f"{error.format_message()} Media, speech and a flag per parameter come with {_more()}"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None


class _Plain:
    """Standard output as the display of a reply. ``quiet``: ``--json`` prints the whole reply at the end."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def text(self, piece: str) -> None:
        if not self._quiet:
            click.echo(piece, nl=False)

    def audio(self, seconds: float) -> None:
        """Show nothing before the end."""


@click.command(cls=_Run)
@with_source
@message_argument
@log_options
@click.option("--text", help="What to say to the model, as MESSAGE; - reads it from standard input.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Give up after so many seconds.")
@click.option("--param", multiple=True, metavar="KEY=VALUE", help="A parameter of the request: GROUP.NAME or NAME.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="A key of the request's metadata.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, errors included, not text.")
def run(timeout: float | None, as_json: bool, **options: Any) -> None:
    """Run PIPELINE: a registered name, a deploy file or preset, a checkpoint folder or a hub id. MESSAGE may also come from standard
    input."""
    text = given_text(options)
    if text is None and sys.stdin is not None and sys.stdin.isatty():
        raise click.UsageError(f"nothing to answer: give a MESSAGE. A chat, and files, come with {_more()}")
    content = [{"type": "text", "text": standard_input() if text in (None, "-") else text}]
    given: dict[str, Any] = {"params": {}, "metadata": {}}
    assign(given, options)
    request = OmniRequest({"messages": [{"role": "user", "content": content}]}, **given, timeout=timeout)
    source = source_of(options)
    with signals_named():
        from omni_core.coordinator.admission import admission  # the runtime is imported only when something runs

        resolved = source.resolve()
        config = resolved.config
        for notice in source.notices:
            click.echo(notice, err=True)
        admission(config, load_plugins())(request)  # a wrong value fails before the stages start
        config = completed(config, resolved.located)  # outside the event loop: a download must hear of Ctrl-C
        asyncio.run(until_terminated(_answer(config, request, as_json=as_json)))


async def _answer(config: PipelineConfig, request: OmniRequest, *, as_json: bool) -> None:
    from omni_core.cli.reply import receive_reply, reply_document, seconds_of
    from omni_core.client import open_async

    async with open_async(config, on_progress=lambda stage, state: click.echo(f"{stage}: {state}", err=True)) as pipe:
        reply = await receive_reply(pipe, request, _Plain(quiet=as_json))
    if as_json:
        click.echo(json.dumps(reply_document(reply), default=str))
        return
    if reply.text and not reply.text.endswith("\n"):
        click.echo()
    speech = [f"{seconds:.2f} s of speech"] if (seconds := seconds_of(reply)) else []
    kept = [*speech, *(each for each in ("an image", "a video") if each.split()[1] in reply.outputs)]
    for line in [*reply.notices, *(f"{each}; --out FILE, to keep it, comes with {_more()}" for each in kept)]:
        click.echo(line, err=True)
