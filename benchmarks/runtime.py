"""The runtime without models: hops, throughput, tensors, fan-in, streams, start-up; compared with sglang-omni if it is
given.

    python benchmarks/runtime.py [--quick] [--json FILE] [--peer VENV] [--only WORD]

Stages do nothing, so every figure is the runtime's own. ``--peer`` names a virtual environment that holds sglang-omni
0.1.9; its rounds are interleaved with ours and run the same workloads (``workloads.py``) on its own coordinator, stages
and relay. Without it the figures have no ratio, except that tensors are compared with a ``memcpy`` of their size in
either case.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
import psutil
import workloads
from peer import PEER_NAME, peer_running, peer_start
from report import Row, alone, compare, json_option, publish, quick_option

from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest

HERE = Path(__file__).parent


def stage(name: str, function: str, process: str | None = None, **fields: Any) -> StageConfig:
    return StageConfig(name=name, factory=f"stages:{function}", process=process or name, **fields)


def chain(*functions: str, together: bool = False) -> PipelineConfig:
    """Return stages in a row, each in a process of its own or all in one."""
    names = [f"s{index}" for index in range(len(functions))]
    process = "all" if together else None
    stages = [
        stage(name, function, process, next=following)
        for name, function, following in zip(names[:-1], functions[:-1], names[1:], strict=True)
    ]
    return PipelineConfig(model_path="none", stages=[*stages, stage(names[-1], functions[-1], process, terminal=True)])


def noops(count: int, *, together: bool = False) -> PipelineConfig:
    return chain("entry", *["noop"] * (count - 1), together=together)


def diamond() -> PipelineConfig:
    branches = ["image_encoder", "audio_encoder", "aggregate"]
    return PipelineConfig(
        model_path="none",
        stages=[
            stage("preprocess", "entry", next=branches),
            stage("image_encoder", "noop", next="aggregate"),
            stage("audio_encoder", "noop", next="aggregate"),
            stage(
                "aggregate",
                "noop",
                wait_for=["preprocess", *branches[:2]],
                merge_fn="stages:merge",
                terminal=True,
            ),
        ],
    )


def streaming() -> PipelineConfig:
    return PipelineConfig(
        model_path="none",
        stages=[
            stage("producer", "Producer", next="consumer", stream_to=["consumer"]),
            stage("consumer", "Consumer", terminal=True),
        ],
    )


@asynccontextmanager
async def running(config: PipelineConfig) -> AsyncIterator[workloads.Submit]:
    """A pipeline of ours, with the ``submit`` that the workloads need."""
    terminal = config.terminal_stages[0]
    async with open_async(config) as client:

        async def submit(inputs: Any) -> Any:
            return (await client.submit(OmniRequest(inputs=inputs)))[terminal]

        yield submit


def memcpy_seconds(nbytes: int) -> float:
    source, destination = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        np.copyto(destination, source)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class System(Protocol):
    """A system that runs the workloads of one pipeline shape."""

    async def measure(self, workload: str, **arguments: Any) -> float: ...


class Ours:
    """The workloads on one of our pipelines."""

    def __init__(self, submit: workloads.Submit) -> None:
        self._submit = submit

    async def measure(self, workload: str, **arguments: Any) -> float:
        measured: float = await getattr(workloads, workload)(self._submit, **arguments)
        return measured


class Bench:
    """Runs one shape after the other, ours and the peer's in turn, and collects the rows."""

    def __init__(self, *, quick: bool, peer: Path | None, only: str | None) -> None:
        self.rounds = 2 if quick else 3
        self.scale = 0.1 if quick else 1.0
        self._peer = peer
        self._only = only
        self.rows: list[Row] = []

    def wants(self, *names: str) -> bool:
        return self._only is None or any(self._only in name for name in names)

    def count(self, number: int) -> int:
        return max(4, int(number * self.scale))

    @asynccontextmanager
    async def shape(self, config: PipelineConfig, *shape: str) -> AsyncIterator[list[System]]:
        """Open our pipeline and, if there is one, the peer's of the same shape; both stay up, one of them works at a
        time.
        """
        async with running(config) as submit:
            if self._peer is None:
                yield [Ours(submit)]
            else:
                async with peer_running(self._peer, *shape) as peer:
                    yield [Ours(submit), peer]

    async def rounds_of(self, systems: list[System], workload: str, **arguments: Any) -> list[list[float]]:
        """Return figures by system, then by round; the systems take turns. One unmeasured round warms up."""
        for system in systems:
            await system.measure(workload, **{**arguments, "count": max(4, arguments["count"] // 4)})
        figures: list[list[float]] = [[] for _ in systems]
        for _ in range(self.rounds):
            for kept, system in zip(figures, systems, strict=True):
                kept.append(await system.measure(workload, **arguments))
        return figures

    def add(self, name: str, unit: str, figures: list[list[float]], *, higher_is_better: bool = False) -> None:
        if len(figures) == 1:
            self.rows.append(alone(name, unit, figures[0]))
        else:
            self.rows.append(compare(name, unit, *figures, PEER_NAME, higher_is_better=higher_is_better))
        click.echo(f"{name}: {self.rows[-1].ours:.4g} {unit}", err=True)

    # --- the workloads -----------------------------------------------------------------------------------------------
    async def hops(self, name: str, *, together: bool) -> None:
        """1 KB through 1, 3 and 7 stages: the cost of a hop is the slope."""
        p50: dict[int, list[list[float]]] = {}
        counts = (3, 7) if together else (1, 3, 7)
        for number in counts:
            async with self.shape(
                noops(number, together=together), "chain", str(number), str(int(together))
            ) as systems:
                p50[number] = await self.rounds_of(systems, "latency", count=self.count(800))
                self.add(f"1 KB, {number} stages, {name}: p50", "ms", scaled(p50[number], 1e3))
                if number == 3:
                    rates = await self.rounds_of(systems, "throughput", count=self.count(3000))
                    self.add(f"1 KB, 3 stages, {name}, 64 in flight", "requests/s", rates, higher_is_better=True)
        first, last = counts[0], counts[-1]
        slope = [
            [(b - a) / (last - first) * 1e3 for a, b in zip(low, high, strict=True)]
            for low, high in zip(p50[first], p50[last], strict=True)
        ]
        self.add(f"1 KB, {name}: p50 per hop", "ms", slope)

    async def tensors(self) -> None:
        """s0 attaches a tensor, s1 passes it on, s2 reads it: two hops, compared with copies of that size."""
        async with self.shape(chain("attach", "noop", "read"), "tensors") as systems:
            for size, count in ((2**16, 300), (2**20, 200), (2**24, 40), (2**26, 15)):
                copy = memcpy_seconds(size)
                p50 = await self.rounds_of(systems, "latency", count=self.count(count), nbytes=size)
                label = f"tensor of {size // 1024} KiB, 2 hops"
                self.add(f"{label}: p50 per hop", "ms", scaled(p50, 1e3 / 2))
                self.add(f"{label}: per hop", "memcpys of that size", scaled(p50, 1 / (2 * copy)))

    async def inputs(self) -> None:
        """Inputs of 8 MB that only the first stage reads: the extra cost of a further hop because of them."""
        figures: dict[tuple[int, int], list[list[float]]] = {}
        for number in (3, 7):
            config = chain("keep_nothing", *["noop"] * (number - 1))
            async with self.shape(config, "chain", str(number), "0") as systems:
                for nbytes in (64, 2**23):
                    figures[number, nbytes] = await self.rounds_of(
                        systems, "latency", count=self.count(60), blob_bytes=nbytes
                    )
        extra = [
            [((d - c) - (b - a)) / 4 * 1e3 for a, b, c, d in zip(*rounds, strict=True)]
            for rounds in zip(*(figures[key] for key in ((3, 64), (7, 64), (3, 2**23), (7, 2**23))), strict=True)
        ]
        self.rows.append(alone("8 MB of inputs: extra cost per hop that does not read them", "ms", extra[0]))
        if len(extra) == 2:
            self.rows.append(alone(f"8 MB of inputs: the same, {PEER_NAME}", "ms", extra[1]))

    async def fan_in(self) -> None:
        async with self.shape(diamond(), "diamond") as systems:
            p50 = await self.rounds_of(systems, "latency", count=self.count(300))
            self.add("diamond, 1 KB: p50", "ms", scaled(p50, 1e3))
            rates = await self.rounds_of(systems, "throughput", count=self.count(2000))
            self.add("diamond, 64 in flight", "requests/s", rates, higher_is_better=True)

    async def streams(self) -> None:
        async with self.shape(streaming(), "stream") as systems:
            rates = await self.rounds_of(systems, "stream", count=10, chunks=200, chunk_bytes=8192)
            self.add("stream of 200 x 8 KB", "chunks/s", rates, higher_is_better=True)
        async with running(streaming()) as submit:  # chunks of this size crash the peer
            rates = await self.rounds_of([Ours(submit)], "stream", count=10, chunks=200, chunk_bytes=65536)
            self.add("stream of 200 x 64 KB", "chunks/s", rates, higher_is_better=True)

    async def start(self) -> None:
        """Measure the start of three processes, their memory, and their CPU use while idle."""
        seconds, memory, idle = [], [], []
        for _ in range(self.rounds):
            begin = time.perf_counter()
            async with open_async(noops(3)) as client:
                seconds.append(time.perf_counter() - begin)
                await client.submit(OmniRequest(inputs={}))
                processes = [psutil.Process(pid) for pid in client.process_ids.values()]
                memory.append(statistics.median(each.memory_full_info().uss for each in processes) / 1e6)
                used = [sum(each.cpu_times()[:2]) for each in processes]
                await asyncio.sleep(2.0)
                idle.append(max(sum(p.cpu_times()[:2]) - u for p, u in zip(processes, used, strict=True)) / 2.0 * 100)
        theirs = [await peer_start(self._peer) for _ in range(self.rounds)] if self._peer else None
        for index, (name, unit, ours) in enumerate(
            (
                ("start of 3 processes to ready", "s", seconds),
                ("private memory of a stage process that does nothing", "MB", memory),
                ("CPU of an idle stage process", "%", idle),
            )
        ):
            if theirs and name.startswith(("start", "private")):
                self.add(name, unit, [ours, [each[index] for each in theirs]])
            else:
                self.add(name, unit, [ours])


def scaled(figures: list[list[float]], factor: float) -> list[list[float]]:
    return [[each * factor for each in rounds] for rounds in figures]


async def measure_all(bench: Bench) -> None:
    if bench.wants("start"):
        await bench.start()
    if bench.wants("hops"):
        await bench.hops("own process each", together=False)
    if bench.wants("hops", "together"):
        await bench.hops("one process", together=True)
    if bench.wants("tensors"):
        await bench.tensors()
    if bench.wants("inputs"):
        await bench.inputs()
    if bench.wants("diamond"):
        await bench.fan_in()
    if bench.wants("streams"):
        await bench.streams()


@click.command()
@quick_option
@json_option
@click.option(
    "--peer", type=click.Path(path_type=Path, exists=True, file_okay=False), help="A venv with sglang-omni 0.1.9."
)
@click.option("--only", help="start, hops, together, tensors, inputs, diamond or streams.")
def main(quick: bool, json_path: Path | None, peer: Path | None, only: str | None) -> None:
    """The runtime's own speed and memory."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    bench = Bench(quick=quick, peer=peer, only=only)
    asyncio.run(measure_all(bench))
    publish(bench.rows, json_path)


if __name__ == "__main__":
    main()
