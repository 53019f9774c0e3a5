"""The runtime of this environment beside another version's, in turns: wall and CPU time of the same requests.

    python benchmarks/versions.py PYTHON [--starts 4] [--turns 20] [--only WORD] [--json FILE]

``PYTHON`` is the interpreter of a virtual environment that holds the other version. For each shape of ``runtime.py`` both
versions run side by side, and one of them works at a time, for a few dozen requests; the order changes with each turn. Both
are started anew several times, as each start has its own luck with memory and cores. A figure is the median of the turns'
ratios; ``least`` compares the tenth parts of the turns that took each version the least CPU time, those that other load
disturbed least. Over 1, this version is better. CPU time is that of the runner and of all its stage processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click
import psutil
import workloads
from report import json_option
from runtime import chain, diamond, noops, running, streaming

HERE = Path(__file__).parent

SHAPES: dict[str, Any] = {
    "1 stage": lambda: noops(1),
    "3 stages": lambda: noops(3),
    "7 stages": lambda: noops(7),
    "one process, 3 stages": lambda: noops(3, together=True),
    "one process, 7 stages": lambda: noops(7, together=True),
    "diamond": diamond,
    "tensors": lambda: chain("attach", "noop", "read"),
    "streams": streaming,
}
"""Pipelines of :mod:`runtime`, by name."""

TURNS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("1 KB, 1 stage, p50", "1 stage", "latency", {"count": 40}),
    ("1 KB, 3 stages, p50", "3 stages", "latency", {"count": 40}),
    ("1 KB, 7 stages, p50", "7 stages", "latency", {"count": 30}),
    ("1 KB, 3 stages, 64 in flight", "3 stages", "throughput", {"count": 400}),
    ("1 KB, one process, 3 stages, p50", "one process, 3 stages", "latency", {"count": 100}),
    ("1 KB, one process, 7 stages, p50", "one process, 7 stages", "latency", {"count": 60}),
    ("1 KB, one process, 3 stages, 64 in flight", "one process, 3 stages", "throughput", {"count": 600}),
    ("diamond, p50", "diamond", "latency", {"count": 40}),
    ("diamond, 64 in flight", "diamond", "throughput", {"count": 300}),
    ("64 KiB over 2 hops, p50", "tensors", "latency", {"count": 40, "nbytes": 2**16}),
    ("1 MiB over 2 hops, p50", "tensors", "latency", {"count": 30, "nbytes": 2**20}),
    ("16 MiB over 2 hops, p50", "tensors", "latency", {"count": 6, "nbytes": 2**24}),
    ("stream of 200 x 8 KB", "streams", "stream", {"count": 4, "chunks": 200, "chunk_bytes": 8192}),
]
"""Name, shape, workload and its arguments."""

RATES = ("throughput", "stream")
"""The workloads whose figure is better if it is higher."""


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all its descendants."""
    pids = [os.getpid(), *(each.pid for each in psutil.Process().children(recursive=True))]
    return sum(
        time.clock_gettime((~pid << 3) | 2) for pid in pids
    )  # the CPU clock of a process, see clock_getcpuclockid(3)


async def serve(shape: str) -> None:
    """Run one shape, and a workload on it for each line of standard input."""
    async with running(SHAPES[shape]()) as submit:
        print("{}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            workload, arguments = json.loads(line)
            begin = cpu_seconds()
            figure = await getattr(workloads, workload)(submit, **arguments)
            spent = cpu_seconds() - begin
            print(json.dumps({"figure": figure, "cpu": spent}), flush=True)


class Version:
    """A shape that runs in another process, with one of the two interpreters."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(await self._process.stdout.readline())

    async def measure(self, workload: str, arguments: dict[str, Any]) -> tuple[float, float]:
        """Return the seconds that a turn stands for, and its CPU seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([workload, arguments]).encode() + b"\n")
        answer = await self.answer()
        return (1 / answer["figure"] if workload in RATES else answer["figure"]), answer["cpu"]


@asynccontextmanager
async def version(python: str, shape: str) -> AsyncIterator[Version]:
    process = await asyncio.create_subprocess_exec(
        *(python, str(HERE / "versions.py"), "--serve", shape), stdin=-1, stdout=-1
    )
    made = Version(process)
    await made.answer()
    try:
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def compare(python: str, starts: int, turns: int, only: str | None) -> dict[str, dict[str, float]]:
    """Return the ratios of each row."""
    rows: dict[str, dict[str, float]] = {}
    for shape in SHAPES:
        wanted = [each for each in TURNS if each[1] == shape and (only is None or only in each[0])]
        found: dict[str, list[Turn]] = {name: [] for name, *_ in wanted}
        for _ in range(starts if wanted else 0):
            async with AsyncExitStack() as stack:
                other = await stack.enter_async_context(version(python, shape))
                this = await stack.enter_async_context(version(sys.executable, shape))
                for name, _, workload, arguments in wanted:
                    found[name] += await take_turns(other, this, workload, arguments, turns)
        for name, each in found.items():
            rows[name] = summary(each)
            click.echo(f"{name:44} " + "  ".join(f"{key} {value:.3f}" for key, value in rows[name].items()))
    return rows


Turn = tuple[tuple[float, float], tuple[float, float]]
"""Wall and CPU time of the other version, and of this one."""


async def take_turns(other: Version, this: Version, workload: str, arguments: dict[str, Any], turns: int) -> list[Turn]:
    """Let both work in turn."""
    found = []
    for turn in range(-2, turns):
        times = {}
        for each in (other, this) if turn % 2 else (this, other):
            times[each] = await each.measure(workload, arguments)
        if turn >= 0:  # the others warm up
            found.append((times[other], times[this]))
    return found


def summary(turns: list[Turn]) -> dict[str, float]:
    """Return the ratios of a row; ``from`` and ``to`` are the quarters of that of the CPU time."""
    wall = statistics.median(other[0] / this[0] for other, this in turns)
    low, middle, high = statistics.quantiles((other[1] / this[1] for other, this in turns), n=4)
    least = [statistics.quantiles((turn[side][1] for turn in turns), n=10)[0] for side in (0, 1)]
    return {"wall": wall, "cpu": middle, "from": low, "to": high, "least": least[0] / least[1]}


@click.command()
@click.argument("python", required=False)
@click.option("--starts", default=4, show_default=True)
@click.option("--turns", default=20, show_default=True)
@click.option("--only", help="Part of a row's name.")
@click.option("--serve", "shape", hidden=True)
@json_option
def main(
    python: str | None, starts: int, turns: int, only: str | None, shape: str | None, json_path: Path | None
) -> None:
    """Compare the runtime of this environment with that of PYTHON's."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    if shape is not None:
        asyncio.run(serve(shape))
        return
    if python is None:
        raise click.UsageError("give the interpreter of the other version's environment")
    rows = asyncio.run(compare(python, starts, turns, only))
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
