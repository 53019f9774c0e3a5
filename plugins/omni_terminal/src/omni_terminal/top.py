"""``omni top``: a running pipeline, live: stages, queues, rates, latencies, restarts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from omni_core.errors import OmniError
from omni_core.observe.status_client import StatusClient
from omni_core.protocol.messages import StatusReport
from omni_terminal.runs import Run, chosen, duration, owner, run_argument

_LEAVE = frozenset(b"qQ\x04")


@click.command()
@run_argument
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that is known as one JSON document and end.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between looks.")
def top(run: str | None, once: bool, as_json: bool, interval: float) -> None:
    """Watch a running pipeline; `q` leaves.

    RUN is its pid, name or run folder (see `omni ps`); not needed if only one runs.
    """
    found = chosen(run)
    if as_json:
        click.echo(json.dumps({**found.as_document(), **attrs.asdict(_answered(found))}, indent=2))
    elif once:
        Console().print(view(found, _answered(found), None, Console().width))
    else:
        with suppress(KeyboardInterrupt):
            asyncio.run(_watch(found, interval))


def _answered(run: Run) -> StatusReport:
    if run.report is None:
        raise OmniError(f"the pipeline does not answer; is its process (pid {run.pid}: {run.command}) stopped?")
    return run.report


async def _watch(run: Run, interval: float) -> None:
    """Show the pipeline until it ends, or a key says to leave."""
    console, before, report = Console(), None, run.report
    with StatusClient(run.folder) as client, _keys() as left, Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(Group(view(run, report, before, console.width), Text("q: leave", style="dim")), refresh=True)
            await asyncio.wait([left], timeout=interval)
            if left.done():
                return
            asking = asyncio.ensure_future(client.status())
            waited: list[asyncio.Future[Any]] = [left, asking]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                asking.cancel()
                return
            before = report or before
            report = None if asking.exception() is not None else asking.result()
            if report is None and owner(run.folder) is None:
                break
    click.echo(f"{run.name} (pid {run.pid}) has ended.")


@contextmanager
def _keys() -> Iterator[asyncio.Future[None]]:
    """Give a future that is done when a key to leave is pressed. Where standard input is no terminal, it never is."""
    loop = asyncio.get_running_loop()
    left: asyncio.Future[None] = loop.create_future()
    if not sys.stdin.isatty():
        yield left
        return
    descriptor = sys.stdin.fileno()
    usual = termios.tcgetattr(descriptor)

    def read() -> None:
        typed = os.read(descriptor, 64)
        if (not typed or not _LEAVE.isdisjoint(typed)) and not left.done():
            left.set_result(None)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield left
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, usual)


def view(run: Run, report: StatusReport | None, before: StatusReport | None, width: int) -> RenderableType:
    """Return what is shown of a pipeline in ``width`` columns; rates are since ``before``."""
    if report is None:
        return Text(f"{run.name} (pid {run.pid}): does not answer; is its process stopped?")
    requests = report.statistics["coordinator"]["requests"]
    counts = [f"{requests['running']:.0f} in flight", f"{requests['completed']:.0f} completed"]
    counts += [f"{requests[name]:.0f} {name}" for name in ("failed", "refused") if requests[name]]
    title = Text(f"{report.pipeline}", style="bold")
    title.append(f"  pid {run.pid}, up {duration(report.uptime)}: {', '.join(counts)}", style="not bold")
    return Group(title, table(report, before, width))


_COLUMNS = (
    "stage", "process", "state", "restarts", "queued", "running", "done", "failed", "per s", "p50", "p99", "batch", "KV", "out",
)  # fmt: skip
_OPTIONAL = ("process", "restarts", "batch", "KV", "out")
"""Columns that are left out where they say nothing."""
_DROPPED = ("process", "out", "batch", "KV", "restarts", "failed", "p50", "queued", "p99", "done", "running", "per s")
"""Columns that are left out where there is no room for them: the first one first."""


def table(report: StatusReport, before: StatusReport | None, width: int = 200) -> Table:
    """Return a row per stage and process, with the columns that have something to say and room in ``width``."""
    rows = [*_rows(report, before)]
    silent = {name for name in _OPTIONAL if all(row[name] in ("", "0", row["stage"]) for row in rows)}
    widths = {name: max(map(len, (name, *(row[name] for row in rows)))) for name in _COLUMNS if name not in silent}
    for name in _DROPPED:
        if sum(widths.values()) + 2 * len(widths) - 2 > width:
            widths.pop(name, None)
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in widths:
        left = name in ("stage", "process", "state")
        shown.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        style = "" if row["state"] == "ready" else "yellow" if row["state"] != "failed" else "red"
        shown.add_row(*(row[name] for name in widths), style=style)
    return shown


def _rows(report: StatusReport, before: StatusReport | None) -> Iterator[dict[str, str]]:
    for name, unit in report.health.items():
        for process in _processes(report, name):
            for stage in unit["stages"]:
                now = report.statistics[process].get(stage, {})
                then = before.statistics.get(process, {}).get(stage, {}) if before is not None else {}
                seconds = report.uptime - before.uptime if before is not None else report.uptime
                yield {"stage": stage, "process": process, **_row(unit, now, then, seconds)}


def _processes(report: StatusReport, unit: str) -> list[str]:
    return [name for name in report.statistics if name == unit or name.startswith(f"{unit}_tp")]


def _row(unit: dict[str, Any], now: dict[str, float], then: dict[str, float], seconds: float) -> dict[str, str]:
    def count(name: str) -> str:
        return f"{now[name]:.0f}" if name in now else ""

    def rate(name: str) -> float:
        return max(0.0, now.get(name, 0.0) - then.get(name, 0.0)) / max(seconds, 1e-3)

    sent = sum(rate(name) for name in now if name.startswith("edge.") and name.endswith(".bytes"))
    steps, blocks = now.get("steps", 0.0), now.get("total_blocks", 0.0)
    return {
        "state": unit["state"],
        "restarts": str(unit["restarts"]),
        "queued": count("queued"),
        "running": count("in_flight"),
        "done": count("completed"),
        "failed": count("failed"),
        "per s": f"{rate('completed'):.1f}",
        "p50": _latency(now.get("latency.p50")),
        "p99": _latency(now.get("latency.p99")),
        "batch": f"{now['computed'] / steps:.1f}" if steps and "computed" in now else "",
        "KV": f"{1 - now['free_blocks'] / blocks:.0%}" if blocks else "",
        "out": f"{sent / 1e6:.1f} MB/s" if sent else "",
    }


def _latency(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
