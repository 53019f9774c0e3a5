"""Deaths of processes: how tests cause them, wait for what follows, and what parents under test run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from fault_harness import (
    SOON,
    Load,
    standstills,
    step,
)
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import StageConfig
from omni_core.errors import OmniError, RequestFailedError
from omni_core.protocol.messages import OmniRequest


async def serving(client: AsyncPipe, name: str) -> None:
    """Wait until the unit serves again after a death."""
    end = time.monotonic() + 2 * SOON
    while client.health()[name]["state"] != "ready":
        assert time.monotonic() < end, client.health()[name]
        await asyncio.sleep(0.01)


async def kill(client: AsyncPipe, name: str, unit: str | None = None) -> None:
    """Kill a process, and wait until its parent knows."""
    before = client.health()[unit or name]["restarts"]
    os.kill(client.process_ids[name], signal.SIGKILL)
    while client.health()[unit or name]["state"] == "ready" and client.health()[unit or name]["restarts"] == before:
        await asyncio.sleep(0.002)


def blamed(failed: list[tuple[int, OmniError]], *stages: str) -> None:
    """Check that every failure is reported as what it is."""
    for _, error in failed:
        assert isinstance(error, RequestFailedError), error
        assert (error.error_type, error.stage in stages) == ("ProcessDied", True), error
        assert "SIGKILL" in str(error)


async def first_tensors(folder: Path) -> None:
    def make(name: str, factory: str, **fields: Any) -> StageConfig:
        return StageConfig(name=name, factory=f"fault_stages:{factory}", process=name, terminal=True, **fields)

    config = make_pipeline(folder, make("only", "vector"))
    bystanders = make_pipeline(folder, step("only", terminal=True))
    async with open_async(bystanders) as others, open_async(config) as client:
        with standstills() as seen:
            async with Load(others, lambda n, answer: bool(answer["only"]["n"] == n)).running() as load:
                assert "torch" not in sys.modules
                tensors = [client.submit(OmniRequest({"n": n, "nbytes": 1000 * n})) for n in range(8)]
                for n, answer in enumerate(await asyncio.gather(*tensors)):
                    assert answer["only"]["tensor"].tolist() == [n] * 1000 * n
                again = sys.modules["torch"].arange(5)
                await client.submit(OmniRequest({"n": 1, "nbytes": 1, "unread": again}))
                assert load.answered > 200
        # Importing torch takes a second or more; the interpreter changes its thread after 5 ms, except in initialisers in C.
        print("ok" if max(seen) < (0.4, "") else "slow", max(seen))


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def run_until_killed(folder: Path) -> None:
    config = make_pipeline(
        folder,
        StageConfig(name="make", factory="fault_stages:vector", process="make", next="check"),
        StageConfig(name="check", factory="fault_stages:check_vector", process="check", terminal=True),
    )
    async with (
        open_async(config) as client,
        Load(client, lambda n, answer: True, {"nbytes": 400_000}).running() as load,
    ):
        print(*client.process_ids.values(), flush=True)
        await load.more(10**9, seconds=60)
