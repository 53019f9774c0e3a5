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
from attrs import frozen
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from omni_cli.runs import Run, chosen, duration, owner, run_argument
from omni_cli.status_client import StatusClient
from omni_core.api import OmniError
from omni_core.runtime_api import StatusReport

_LEAVE = frozenset(b"qQ\x04")

_SATURATED = 0.9
"""A stage that is at work for this share of the time has no room: its queue grows with every further request."""


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
            shown = view(run, report, before, console.width)
            live.update(Group(shown, Text("q: leave", style="dim")), refresh=True)
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
    load = load_line(report, before)
    return Group(title, *([Text(load)] if load else []), table(report, before, width))


_COLUMNS = (
    "stage", "process", "state", "restarts", "queued", "running", "done", "failed", "per s", "p50", "p99", "cpu", "work", "batch",
    "KV", "out",
)  # fmt: skip
_OPTIONAL = ("process", "restarts", "cpu", "work", "batch", "KV", "out")
"""Columns that are left out where they say nothing."""
_DROPPED = (
    "process", "out", "batch", "work", "KV", "restarts", "failed", "p50", "queued", "p99", "done", "running", "cpu", "per s",
)  # fmt: skip
"""Columns that are left out where there is no room for them: the first one first."""


def load_line(report: StatusReport, before: StatusReport | None) -> str:
    """Return the load of the whole pipeline in a line: requests a second, late sound, and what has the least room.

    Empty if the pipeline says nothing of it.
    """
    seconds = max(1e-3, report.uptime - before.uptime if before is not None else report.uptime)
    now = report.statistics["coordinator"]["requests"]
    then = {} if before is None else before.statistics["coordinator"]["requests"]
    parts = [f"{max(0.0, now['completed'] - then.get('completed', 0.0)) / seconds:.2f} a second"]
    sound, late = (_total(report, name) - _total(before, name) for name in ("sound_seconds", "late_seconds"))
    if sound > 0 or late > 0:
        parts.append(f"{late:.2f} s late in {sound:.1f} s of sound")
    rows = [(row.stage, row.share) for row in _looked(report, before) if row.share is not None]
    if rows:
        stage, share = max(rows, key=lambda each: each[1])
        parts.append(f"{'saturates' if share >= _SATURATED else 'busiest'}: {stage} {share:.0%}")
    return "; ".join(parts) if len(parts) > 1 else ""


def _total(report: StatusReport | None, counter: str) -> float:
    parts = [] if report is None else [part for process in report.statistics.values() for part in process.values()]
    return sum(part.get(counter, 0.0) for part in parts)


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


@frozen
class _Look:
    """The counters of a stage in a process, now and before, and the seconds in between."""

    unit: dict[str, Any]
    stage: str
    process: str
    now: dict[str, float]
    then: dict[str, float]
    seconds: float

    def added(self, name: str) -> float:
        """Return what a counter has grown by."""
        return max(0.0, self.now.get(name, 0.0) - self.then.get(name, 0.0))

    @property
    def share(self) -> float | None:
        """The share of a processor that the stage's thread has used; ``None``: it does not say."""
        return self.added("cpu_seconds") / max(self.seconds, 1e-3) if "cpu_seconds" in self.now else None

    @property
    def work(self) -> float | None:
        """The seconds of a processor for a request; ``None``: none has ended."""
        completed = self.added("completed")
        return self.added("cpu_seconds") / completed if completed and "cpu_seconds" in self.now else None


def _looked(report: StatusReport, before: StatusReport | None) -> Iterator[_Look]:
    for name, unit in report.health.items():
        for process in _processes(report, name):
            for stage in unit["stages"]:
                now = report.statistics[process].get(stage, {})
                then = before.statistics.get(process, {}).get(stage, {}) if before is not None else {}
                seconds = report.uptime - before.uptime if before is not None else report.uptime
                yield _Look(unit, stage, process, now, then, seconds)


def _rows(report: StatusReport, before: StatusReport | None) -> Iterator[dict[str, str]]:
    for look in _looked(report, before):
        yield {
            "stage": look.stage,
            "process": look.process,
            **_row(look.unit, look.now, look.then, look.seconds),
            "cpu": "" if look.share is None else f"{look.share:.0%}",
            "work": _latency(look.work),
        }


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
