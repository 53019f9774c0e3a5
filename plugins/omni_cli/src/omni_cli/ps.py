"""``omni ps`` and ``omni stop``: the running pipelines of this user, and the end of one."""

from __future__ import annotations

import json
import os
import select
import signal

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from omni_cli.runs import Run, chosen, duration, owner, run_argument, runs
from omni_core.api import ConfigError, OmniError


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def ps(as_json: bool) -> None:
    """List the running pipelines of this user: name, process, uptime, state, requests and run folder."""
    found = runs()
    if as_json:
        click.echo(json.dumps([run.as_document() for run in found], indent=2))
    elif not found:
        click.echo("No pipeline runs here.")
    else:
        Console(highlight=False).print(table(found))


def table(found: list[Run]) -> Table:
    """Return a row per pipeline."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("name", "pid", "uptime", "state", "running", "done", "folder"):
        shown.add_column(column, overflow="fold", no_wrap=column in ("name", "pid", "uptime", "folder"))
    for run in found:
        uptime, counts = "", ["", ""]
        if run.report is not None:
            requests = run.report.statistics["coordinator"]["requests"]
            uptime, counts = duration(run.report.uptime), [f"{requests[each]:.0f}" for each in ("running", "completed")]
        texts = (run.name, str(run.pid), uptime, run.state, *counts, str(run.folder))
        shown.add_row(*map(Text, texts))  # a name may have brackets, which rich would read as markup
    return shown


@click.command()
@run_argument
@click.option(
    "--timeout", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds to wait for its end."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def stop(run: str | None, timeout: float, as_json: bool) -> None:
    """End a running pipeline in order: SIGTERM to the process that opened it, and wait until it has ended.

    RUN is its pid, name or run folder (see `omni ps`); not needed if only one runs.
    """
    found = chosen(run)
    if found.pid == os.getpid():
        raise ConfigError("this process itself runs that pipeline")
    try:
        handle = os.pidfd_open(found.pid)
    except ProcessLookupError:
        handle = None
    if handle is not None:
        try:
            if owner(found.folder) == found.pid:  # the number of a process that has ended may be another's by now
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            if not select.select([handle], [], [], timeout)[0]:
                raise OmniError(
                    f"{found.name} (pid {found.pid}) has not ended within {timeout:g} s; it runs: {found.command}. "
                    f"To end it at once, losing its requests: kill -9 {found.pid}"
                )
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)
    if as_json:
        click.echo(json.dumps({"stopped": {"name": found.name, "pid": found.pid, "folder": str(found.folder)}}))
    else:
        click.echo(f"{found.name} (pid {found.pid}) has ended.")
