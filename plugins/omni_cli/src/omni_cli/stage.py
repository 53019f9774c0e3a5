"""``omni stage``: the units of a stage of a running pipeline are replaced, or their number is changed, while requests run."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import click

from omni_cli.runs import Run, chosen, run_argument
from omni_cli.status_client import StatusClient
from omni_core.api import ConfigError, OmniError
from omni_core.runtime_api import Change, OperationRequest, parse_assignment, value_of

_NAME = click.argument("name")
_SET = click.option(
    "--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the stage, such as factory_args.x=1."
)
_WAIT = click.option("--no-wait", is_flag=True, help="Do not wait until the old units have ended.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def stage() -> None:
    """Replace or scale a stage of a running pipeline."""


@stage.command()
@_NAME
@run_argument
@_SET
@_WAIT
@_JSON
def replace(name: str, run: str | None, settings: tuple[str, ...], no_wait: bool, as_json: bool) -> None:
    """Replace the units of the stage NAME one after another, with fields changed by --set.

    New requests go to a new unit as soon as it is ready; the old one ends when its requests have. One that does not start changes
    nothing. Ctrl-C leaves every unit that serves.

    RUN is the pid, name or run folder of the pipeline (see `omni ps`); not needed if only one runs.
    """
    request = OperationRequest("", name, None, _settings(settings), not no_wait)
    _show(_operate(chosen(run), request, quiet=as_json), as_json)


@stage.command()
@_NAME
@click.argument("replicas", type=int)
@run_argument
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    help="`gpu` or `host`: a list, with those that are there.",
)
@_WAIT
@_JSON
def scale(name: str, replicas: int, run: str | None, settings: tuple[str, ...], no_wait: bool, as_json: bool) -> None:
    """Change the number of replicas of the stage NAME.

    Replicas that are taken away get no more requests, and end when those that they have are over.

    RUN is the pid, name or run folder of the pipeline (see `omni ps`); not needed if only one runs.
    """
    request = OperationRequest("", name, replicas, _settings(settings), not no_wait)
    _show(_operate(chosen(run), request, quiet=as_json), as_json)


def _settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of flags by their paths."""
    found: dict[str, Any] = {}
    for text in texts:
        path, value = parse_assignment("--set", text, "field=value, such as factory_args.max_running=8")
        if path in found:
            raise ConfigError(f"--set {path}: given twice")
        found[path] = value_of(("stages", "", *path.split(".")), value, text.partition("=")[2])
    return found


def _operate(run: Run, request: OperationRequest, *, quiet: bool) -> Change:
    """Let the pipeline do it. A signal cancels that, and the command ends when the pipeline has said what it left."""
    signals: list[int] = []

    async def operate() -> Change:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel(number: int) -> None:
            signals.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, cancel, number)
        with StatusClient(run.folder) as client:
            return await client.operate(request, run.pid, lambda line: None if quiet else click.echo(line))

    try:
        return asyncio.run(operate())
    except (OmniError, asyncio.CancelledError) as error:
        if not signals:
            raise
        click.echo(str(error) or "Interrupted; the operation may go on.", err=True)
        sys.exit(128 + signals[0])


def _show(change: Change, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"group": change.group, "started": change.started, "ended": change.ended}))
        return
    parts = [
        f"{word} {', '.join(names)}" for word, names in (("started", change.started), ("ended", change.ended)) if names
    ]
    click.echo(f"{change.group}: {', '.join(parts) or 'nothing to do'}")
