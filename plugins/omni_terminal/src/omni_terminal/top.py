"""``omni top``: a running pipeline, live: stages, queues, rates, latencies, restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from omni_core.observe.status_client import StatusClient, only_run
from omni_core.protocol.messages import StatusReport


@click.command()
@click.argument("run", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that is known as one JSON document and end.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between looks.")
def top(run: Path | None, once: bool, as_json: bool, interval: float) -> None:
    """Watch a running pipeline. RUN is its folder (omni-... among the temporary files); not needed if only one runs."""
    folder = run or only_run()
    try:
        asyncio.run(_watch(folder, once=once, as_json=as_json, interval=interval))
    except KeyboardInterrupt:
        return


async def _watch(folder: Path, *, once: bool, as_json: bool, interval: float) -> None:
    with StatusClient(folder) as client:
        report = await client.status()
        if as_json:
            click.echo(json.dumps(attrs.asdict(report), indent=2))
        elif once:
            Console().print(table(report, None))
        else:
            await _live(client, report, interval)


async def _live(client: StatusClient, report: StatusReport, interval: float) -> None:
    with Live(table(report, None), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval)
            report, before = await client.status(), report
            live.update(table(report, before), refresh=True)


_COLUMNS = [
    "stage",
    "process",
    "state",
    "restarts",
    "queued",
    "running",
    "done",
    "failed",
    "per s",
    "p50",
    "p99",
    "batch",
    "KV",
    "out",
]


def table(report: StatusReport, before: StatusReport | None) -> Table:
    """Return a row per stage and process; rates are since ``before``."""
    requests = report.statistics["coordinator"]["requests"]
    title = (
        f"{report.pipeline}: up {report.uptime:.0f} s, {requests['running']:.0f} requests in flight, "
        f"{requests['completed']:.0f} completed, {requests['failed']:.0f} failed, {requests['refused']:.0f} refused"
    )
    shown = Table(*_COLUMNS, title=title, title_justify="left", box=None, pad_edge=False)
    for name, unit in report.health.items():
        for process in _processes(report, name):
            for stage in unit["stages"]:
                now = report.statistics[process].get(stage, {})
                then = before.statistics.get(process, {}).get(stage, {}) if before is not None else {}
                seconds = report.uptime - before.uptime if before is not None else report.uptime
                shown.add_row(stage, process, *_row(unit, now, then, seconds))
    return shown


def _processes(report: StatusReport, unit: str) -> list[str]:
    return [name for name in report.statistics if name == unit or name.startswith(f"{unit}_tp")]


def _row(unit: dict[str, Any], now: dict[str, float], then: dict[str, float], seconds: float) -> list[str]:
    def count(name: str) -> str:
        return f"{now[name]:.0f}" if name in now else ""

    def rate(name: str) -> float:
        return max(0.0, now.get(name, 0.0) - then.get(name, 0.0)) / max(seconds, 1e-3)

    sent = sum(rate(name) for name in now if name.startswith("edge.") and name.endswith(".bytes"))
    steps, blocks = now.get("steps", 0.0), now.get("total_blocks", 0.0)
    return [
        unit["state"],
        str(unit["restarts"]),
        count("queued"),
        count("in_flight"),
        count("completed"),
        count("failed"),
        f"{rate('completed'):.1f}",
        _duration(now.get("latency.p50")),
        _duration(now.get("latency.p99")),
        f"{now['computed'] / steps:.1f}" if steps and "computed" in now else "",
        f"{1 - now['free_blocks'] / blocks:.0%}" if blocks else "",
        f"{sent / 1e6:.1f} MB/s" if sent else "",
    ]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
