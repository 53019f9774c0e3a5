"""Faults under load: 64 requests in flight that must all be right, and a pipeline that must be as before afterwards."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import fault_stages  # noqa: F401  (its classes may come back in answers)
import psutil
from attrs import define, field
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import OmniError
from omni_core.protocol.messages import OmniRequest

IN_FLIGHT = 64
SOON = 30.0
"""Seconds that a test waits for what has to come at once: only a failure takes that long. What would come instead takes longer, or
comes when the test says so.
"""

FRESH_SECONDS = 0.01
"""Seconds for which the waits of all threads are used again."""

GROWTH_BYTES = 24 * 2**20
"""Private memory that a process may gain over a test: allocators keep some; a leak under load is more."""

_PATH = ["start", "work"]


def step(name: str, **fields: Any) -> StageConfig:
    """Return a stage that passes its input on, in a process of its own."""
    arguments = {"name": name} | fields.pop("arguments", {})
    defaults = {"factory": "fault_stages:step", "factory_args": arguments, "process": name}
    return StageConfig(name=name, **{**defaults, **fields})


def branching(folder: Path, together: bool = False, **fields: Any) -> PipelineConfig:
    """Return a pipeline with every kind of function: route, projection, fan-in with its subset, merge."""
    process = {"process": "all"} if together else {}
    return make_pipeline(
        folder,
        step("start", next="work", **process),
        step(
            "work",
            next=["left", "right", "join"],
            route_fn="fault_stages:route",
            project_payload={"join": "fault_stages:project"},
            **process,
        ),
        step("left", next="join", **process),
        step("right", next="join", **process),
        step(
            "join",
            terminal=True,
            wait_for=["work", "left", "right"],
            wait_for_fn="fault_stages:wait_for",
            merge_fn="fault_stages:merge",
            **process,
        ),
        **fields,
    )


def streaming(folder: Path, together: bool = False, **fields: Any) -> PipelineConfig:
    process = {"process": "all"} if together else {}
    return make_pipeline(
        folder,
        StageConfig(
            **{"process": "produce", **process},
            name="produce",
            factory="fault_stages:Produce",
            next="consume",
            stream_to=["consume"],
            stream_done_to_fn="fault_stages:done_to",
        ),
        StageConfig(**{"process": "consume", **process}, name="consume", factory="fault_stages:Consume", terminal=True),
        **fields,
    )


def right_branching(n: int, answer: dict[str, Any]) -> bool:
    result = answer["join"]
    paths = {"work": _PATH, "left": [*_PATH, "left"], "right": [*_PATH, "right"]}
    return (result["n"], result["paths"], result["projected"]) == (n, paths, True)


def right_streaming(n: int, answer: dict[str, Any]) -> bool:
    return bool(answer == {"consume": {"sum": sum(range(n % 20))}})


Right = Callable[[int, dict[str, Any]], bool]


@define
class Load:
    """Bystanders: :data:`IN_FLIGHT` requests at all times, each checked."""

    client: AsyncPipe
    right: Right
    inputs: dict[str, Any] = field(factory=dict)
    answered: int = 0
    failed: list[tuple[int, OmniError]] = field(factory=list)
    slowest: float = 0.0
    _ending: bool = False
    _numbers: Any = field(factory=itertools.count)

    async def _one(self) -> None:
        while not self._ending:
            n = next(self._numbers)
            begin = time.monotonic()
            try:
                answer = await self.client.submit(OmniRequest({"n": n, **self.inputs}))
            except OmniError as error:
                self.failed.append((n, error))
                await asyncio.sleep(0.01)
                continue
            assert self.right(n, answer), (n, answer)
            self.answered += 1
            self.slowest = max(self.slowest, time.monotonic() - begin)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        tasks = [asyncio.create_task(self._one()) for _ in range(IN_FLIGHT)]
        try:
            await self.more(IN_FLIGHT)
            yield self
            await self.more(2 * IN_FLIGHT)
        finally:
            self._ending = True
            await asyncio.wait_for(asyncio.gather(*tasks), 2 * SOON)

    async def more(self, count: int, seconds: float = 120.0) -> None:
        """Wait until ``count`` more bystanders were answered."""
        goal, end = self.answered + count, time.monotonic() + seconds
        while self.answered < goal:
            assert time.monotonic() < end, f"the pipeline does not answer any more: {self.failed[-1:]}"
            await asyncio.sleep(0.01)


@define
class Possessions:
    """The resources of a process."""

    pid: int
    descriptors: int
    threads: int
    private_bytes: int

    @classmethod
    def of(cls, pid: int) -> Possessions:
        process = psutil.Process(pid)
        return cls(pid, process.num_fds(), process.num_threads(), process.memory_full_info().uss)

    def exceeds(self, before: Possessions, growth: int) -> bool:
        """True if a process is compared by descriptors alone: a restarted one, and the test's own process, whose
        allocators and thread pools grow at random times.
        """
        if self.descriptors > before.descriptors:
            return True
        same = self.pid == before.pid != os.getpid()
        return same and (self.threads > before.threads or self.private_bytes > before.private_bytes + growth)


class Watched:
    """A pipeline whose resources are compared with those before the fault."""

    def __init__(self, client: AsyncPipe) -> None:
        self.client = client
        self._before: dict[str, Possessions] = {}

    def _now(self) -> dict[str, Possessions]:
        gc.collect()
        pids = {**self.client.process_ids, "parent": os.getpid()}
        return {name: Possessions.of(pid) for name, pid in pids.items()}

    async def remember(self) -> None:
        """Take the current resources of the pipeline, at rest, as the baseline."""
        await self.rest()
        self._before = self._now()

    async def rest(self, seconds: float = SOON) -> None:
        """Wait until no state of any request is left in a stage, queue, or relay."""
        end = time.monotonic() + seconds
        while busy := _busy(await self.client.statistics()):
            assert time.monotonic() < end, f"not at rest: {busy}"
            await asyncio.sleep(0.02)

    async def as_before(self, growth: int = GROWTH_BYTES) -> None:
        """Assert that the pipeline is at rest and has the resources of the baseline; private memory may grow by
        ``growth`` bytes.
        """
        await self.rest()
        end = time.monotonic() + SOON  # the pool of a dead process stays mapped for a while
        while grown := self._grown(growth):
            assert time.monotonic() < end, f"more than before: {grown}"
            await asyncio.sleep(0.05)

    def _grown(self, growth: int) -> dict[str, tuple[Possessions, Possessions]]:
        return {
            name: (before, now)
            for name, now in self._now().items()
            if (before := self._before.get(name)) is not None and now.exceeds(before, growth)
        }


def _busy(statistics: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    watched = ("in_flight", "queued", "sends_pending", "slots_in_use", "running")
    return {
        f"{process}.{part}.{name}": counters[name]
        for process, parts in statistics.items()
        for part, counters in parts.items()
        for name in watched
        if counters.get(name)
    }


@contextmanager
def standstills() -> Iterator[list[tuple[float, str]]]:
    """Record how long each callback blocked this thread's event loop, in seconds, with the callback.

    Waiting counts like computing (a join, a lock, the interpreter held by another thread). Time in which a thread of this
    process was runnable but not scheduled does not count (``/proc/self/task/*/schedstat``), so that a busy machine causes no
    failure: the interpreter may be held by a thread that waits for a processor. Neither does garbage collection of objects
    of earlier tests.
    """
    gc.collect()
    gc.freeze()
    seen: list[tuple[float, str]] = []
    run = asyncio.Handle._run
    looked, known = (
        0.0,
        dict[str, int](),
    )  # when the threads were looked at last, and the time that each had waited then

    def waits() -> dict[str, int]:
        found = {}
        for task in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended
                found[task] = int(Path("/proc/self/task", task, "schedstat").read_text().split()[1])
        return found

    def timed(handle: asyncio.Handle) -> None:
        nonlocal looked, known
        if time.perf_counter() - looked > FRESH_SECONDS:
            looked, known = time.perf_counter(), waits()
        begin = time.perf_counter()
        run(handle)
        seconds = time.perf_counter() - begin
        if seconds > FRESH_SECONDS:
            seconds -= sum(now - known.get(task, 0) for task, now in waits().items()) / 1e9
        seen.append((seconds, repr(handle)))

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.unfreeze()


@asynccontextmanager
async def watched(
    config: PipelineConfig, right: Right, inputs: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Watched, Load]]:
    """A running pipeline with its baseline taken after a warm-up, and bystanders ready to start."""
    async with open_async(config, **options) as client:
        async with Load(client, right, inputs or {}).running():
            pass
        pipeline = Watched(client)
        await pipeline.remember()
        yield pipeline, Load(client, right, inputs or {})
