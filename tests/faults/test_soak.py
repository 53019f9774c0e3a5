"""A random mix of every kind of request, with processes killed and suspended and requests aborted at random moments.

Every request must end soon, with a right answer or a correct error. At the end nothing may be left. ``nox -s full`` runs it for
half a minute, ``--soak-seconds`` for as long as you like. A failure prints the seed; ``--soak-seed`` repeats its
decisions (not its timing).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from death_harness import lives
from fault_harness import IN_FLIGHT, Watched, right_streaming, step
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig, RelayConfig, RestartConfig, StageConfig
from omni_core.errors import OmniError, RequestAbortedError, RequestFailedError
from omni_core.protocol.messages import OmniRequest

pytestmark = pytest.mark.full

SIZES = (100, 5_000, 60_000, 300_000, 4_000_000)
SPREAD_BYTES = 96 * 2**20
"""The memory that a process may have more than its predecessor: a random number of 4 MB tensors waits in it for room in
the pool.
"""

LONGEST_STOP = 4.0
LONGEST_REQUEST = 60.0
"""Seconds: consecutive suspensions, a restart with its import of torch, and busy cores. What is lost never ends."""


def everything(folder: Path) -> PipelineConfig:
    """Three shapes behind one entry: fan-out and fan-in, a stream, tensors of any size."""
    small_pool = RelayConfig(slot_size_mb=8, credits=2)
    return make_pipeline(
        folder,
        step("start", next=["work", "produce", "make"], route_fn="fault_stages:route_by_shape"),
        step("work", next=["left", "right", "join"], project_payload={"join": "fault_stages:project"}),
        step("left", next="join"),
        step("right", next="join"),
        step("join", terminal=True, wait_for=["work", "left", "right"], merge_fn="fault_stages:merge"),
        StageConfig(
            name="produce", factory="fault_stages:Produce", process="produce", next="consume", stream_to=["consume"]
        ),
        StageConfig(name="consume", factory="fault_stages:Consume", process="consume", terminal=True),
        StageConfig(name="make", factory="fault_stages:vector", process="make", next="check", relay=small_pool),
        StageConfig(name="check", factory="fault_stages:check_vector", process="check", terminal=True),
        terminal_stages_fn="fault_stages:last_of_shape",
        restart=RestartConfig(limit=10**6, backoff=0.05, backoff_limit=0.2),
        retries=0,
    )


@define
class Soak:
    client: AsyncPipe
    chance: random.Random
    label: str
    outcomes: Counter[str] = field(factory=Counter)
    ending: bool = False
    number: int = 0
    longest: float = 0.0

    def request(self) -> tuple[OmniRequest, dict[str, Any]]:
        self.number += 1
        shape = self.chance.choice(["branching", "streaming", "tensor"])
        inputs: dict[str, Any] = {"n": self.number, "shape": shape}
        if shape == "tensor":
            inputs["nbytes"] = self.chance.choice(SIZES)
        elif self.chance.random() < 0.05:
            place = "left" if shape == "branching" else "consume"
            inputs["poison"] = {"at": place, "kind": self.chance.choice(["exception", "exit", "memory"])}
        timeout = self.chance.choice([None, None, None, 0.05, 1.0])
        return OmniRequest(inputs, metadata={"shape": shape}, timeout=timeout), inputs

    async def keep_asking(self) -> None:
        while not self.ending:
            request, inputs = self.request()
            name = f"{self.label}-{inputs['n']}"
            begin = time.monotonic()
            asked = asyncio.ensure_future(self.client.submit(request, name))
            aborted = self.chance.random() < 0.1
            if aborted:
                await asyncio.sleep(self.chance.expovariate(1 / 0.01))
                if self.chance.random() < 0.5:
                    await self.client.abort(name)
                else:
                    asked.cancel()
            await asyncio.wait([asked])
            seconds = time.monotonic() - begin
            self.longest = max(self.longest, seconds)
            assert seconds < LONGEST_REQUEST, (inputs, seconds)
            self.outcomes[self.judge(asked, request, inputs, aborted)] += 1

    @staticmethod
    def judge(asked: asyncio.Future[Any], request: OmniRequest, inputs: dict[str, Any], aborted: bool) -> str:
        """Check the outcome of a request: a right answer, or a correct error."""
        if asked.cancelled():
            assert aborted
            return "cancelled"
        error = asked.exception()
        if error is None:
            assert "poison" not in inputs, inputs
            assert right(inputs, asked.result()), (inputs, asked.result())
            return "answered"
        assert isinstance(error, OmniError), error
        if isinstance(error, RequestAbortedError):
            assert aborted
            return "aborted"
        assert isinstance(error, RequestFailedError), error
        if error.error_type == "TimeoutError":
            assert request.timeout is not None
            return "expired"
        if error.error_type == "ProcessDied":
            assert "SIGKILL" in str(error) or "has ended" in str(
                error
            )  # as its parent saw it, or as a reader of its memory
            return "lost"
        assert "poison" in inputs, (inputs, error)
        assert error.stage == inputs["poison"]["at"], (inputs, error)
        return "poisoned"

    async def keep_hurting(self) -> None:
        while not self.ending:
            await asyncio.sleep(self.chance.uniform(0.2, 1.0))
            if self.ending:
                return
            name = self.chance.choice(list(self.client.process_ids))
            if self.client.health()[name]["state"] not in ("ready", "stalled"):
                continue
            pid = self.client.process_ids[name]
            if self.chance.random() < 0.6:
                os.kill(pid, signal.SIGKILL)
                self.outcomes["killed"] += 1
                while lives(pid):  # a process that waits for a processor has not seen the signal yet
                    await asyncio.sleep(0.005)
            else:
                os.kill(pid, signal.SIGSTOP)
                self.outcomes["stopped"] += 1
                await asyncio.sleep(self.chance.expovariate(2.0) % LONGEST_STOP)
                os.kill(pid, signal.SIGCONT)


def right(inputs: dict[str, Any], answer: dict[str, Any]) -> bool:
    n = inputs["n"]
    if inputs["shape"] == "streaming":
        return right_streaming(n, answer)
    if inputs["shape"] == "tensor":
        return bool(answer == {"check": {"n": n, "nbytes": inputs["nbytes"]}})
    way = ["start", "work"]
    paths = {"work": way, "left": [*way, "left"], "right": [*way, "right"]}
    return bool(answer["join"]["n"] == n and answer["join"]["paths"] == paths)


async def run(client: AsyncPipe, seconds: float, seed: int, label: str, hurt: bool = False) -> Soak:
    soak = Soak(client, random.Random(seed), label)
    work = [asyncio.create_task(soak.keep_asking()) for _ in range(IN_FLIGHT)]
    if hurt:
        work.append(asyncio.create_task(soak.keep_hurting()))
    done, _ = await asyncio.wait(work, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    soak.ending = True
    await asyncio.wait_for(asyncio.gather(*work), 2 * LONGEST_REQUEST)
    assert not done
    return soak


async def test_soak(folder: Path, request: pytest.FixtureRequest) -> None:
    seconds = request.config.getoption("--soak-seconds")
    given = request.config.getoption("--soak-seed")
    seed = random.randrange(10**6) if given is None else given
    print(f"soak seed {seed}")
    async with open_async(everything(folder)) as client:
        await run(client, 3.0, seed, "before")
        pipeline = Watched(client)
        await pipeline.remember()
        soak = await run(client, seconds, seed, "soak", hurt=True)
        async with asyncio.timeout(LONGEST_REQUEST):
            while not all(map(lives, client.process_ids.values())) or any(
                unit["state"] != "ready" for unit in client.health().values()
            ):
                await asyncio.sleep(0.05)
        after = await run(client, 3.0, seed, "after")
        assert not after.outcomes["lost"]
        await pipeline.as_before(growth=SPREAD_BYTES)
    print(dict(soak.outcomes), f"longest {soak.longest:.1f} s")
    assert soak.outcomes["killed"] > seconds / 8
    assert soak.outcomes["answered"] > 10 * soak.outcomes["killed"]
