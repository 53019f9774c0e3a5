"""Stages that never return, and processes that harm themselves: they are ended and replaced, and the error names the
request.
"""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault_harness import SOON, standstills, step
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import OmniError, RequestFailedError
from omni_core.processes import restarts
from omni_core.protocol.messages import OmniRequest


def acting(folder: Path, how: str = "act", **fields: Any) -> PipelineConfig:
    act = StageConfig(name="act", factory=f"standstill_stages:{how}", process="act", terminal=True, **fields)
    return make_pipeline(folder, step("start", next="act"), act)


async def serves(client: AsyncPipe, n: int = 1) -> None:
    assert (await asyncio.wait_for(client.submit(OmniRequest({"n": n})), SOON))["act"] == {"n": n}


@pytest.mark.parametrize("how", ["spin", "sleep", "lock", "hold the GIL"])
async def test_a_compute_that_never_returns_ends_its_process_and_is_named(folder: Path, how: str) -> None:
    async with open_async(acting(folder, compute_timeout=2.0)) as client:
        pids = client.process_ids
        with pytest.raises(RequestFailedError) as caught:
            await asyncio.wait_for(client.submit(OmniRequest({"n": 1, "do": how}), "guilty"), 2 * SOON)
        assert (caught.value.stage, caught.value.error_type) == ("act", "ProcessDied")
        if how != "hold the GIL":  # then the process cannot report anything
            assert "'guilty' in stage 'act' has not ended within its compute_timeout of 2 s" in str(caught.value)
        await serves(client)
        assert client.health()["act"]["restarts"] == 1
        assert client.process_ids["start"] == pids["start"]


@pytest.mark.parametrize(
    "how", ["close descriptors", pytest.param("close all but the standard ones", marks=pytest.mark.full)]
)
async def test_closed_descriptors_leave_no_process_behind(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "ABORT_GRACE_SECONDS", 2.0)
    async with open_async(acting(folder)) as client:
        pids = list(client.process_ids.values())
        with pytest.raises(OmniError):
            await client.submit(OmniRequest({"n": 1, "do": how}, timeout=1.0))
        end = time.monotonic() + 2 * SOON
        while client.health()["act"]["restarts"] == 0:
            assert time.monotonic() < end, client.health()
            await asyncio.sleep(0.05)
        await serves(client)
        with pytest.raises(OmniError):
            await client.submit(OmniRequest({"n": 1, "do": how}, timeout=1.0))
        pids += client.process_ids.values()
    end = time.monotonic() + SOON
    while left := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < end, left
        await asyncio.sleep(0.02)


@pytest.mark.full
async def test_a_flood_on_stderr_without_a_line_break(folder: Path) -> None:
    async with open_async(acting(folder)) as client:
        await serves(client)
        before = psutil.Process().memory_info().rss
        with standstills() as seen:
            flood = asyncio.create_task(client.submit(OmniRequest({"n": 1, "do": "flood"})))
            assert (await asyncio.wait_for(flood, 2 * SOON))["act"] == {"n": 1}
        assert max(seen) < (0.1, ""), max(seen)
        assert psutil.Process().memory_info().rss - before < 20 * 2**20
        await serves(client)
        assert client.health()["act"]["restarts"] == 0


async def test_a_process_that_has_run_out_of_memory_is_replaced(folder: Path) -> None:
    async with open_async(acting(folder)) as client:
        await client.submit(OmniRequest({"n": 1, "do": "limit memory"}))
        failed = 0
        while client.health()["act"]["restarts"] == 0:
            assert failed < 6
            try:
                await client.submit(OmniRequest({"n": 1, "nbytes": 200 * 2**20}))
            except RequestFailedError:
                failed += 1
            await asyncio.sleep(0.1)
        assert failed >= 3
        assert (await client.submit(OmniRequest({"n": 1, "nbytes": 200 * 2**20})))["act"] == {"n": 1}
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


async def test_requests_for_too_much_memory_do_not_end_the_process(folder: Path) -> None:
    async with open_async(acting(folder)) as client:
        for _ in range(5):
            with pytest.raises(RequestFailedError, match="too much"):
                await client.submit(OmniRequest({"n": 1, "do": "ask for too much"}))
        await serves(client)
        assert client.health()["act"]["restarts"] == 0


# --- ranks -----------------------------------------------------------------------------------------------------------
def ranked(folder: Path) -> PipelineConfig:
    fields: dict[str, Any] = {"tp_size": 2, "terminal": True}
    return make_pipeline(folder, StageConfig(name="act", factory="standstill_stages:summed", **fields))


async def test_a_rank_that_fails_alone_ends_its_stage(folder: Path) -> None:
    async with open_async(ranked(folder)) as client:
        assert (await client.submit(OmniRequest({"n": 2})))["act"] == {"n": 4.0}
        begin = time.monotonic()
        with pytest.raises(RequestFailedError):
            await client.submit(OmniRequest({"n": 1, "fails on": 0}))
        while client.health()["act"]["restarts"] == 0:
            assert time.monotonic() - begin < 2 * SOON, client.health()
            await asyncio.sleep(0.05)
        assert (await asyncio.wait_for(client.submit(OmniRequest({"n": 3})), 2 * SOON))["act"] == {"n": 6.0}


@pytest.mark.full
async def test_ranks_that_fail_together_continue(folder: Path) -> None:
    async with open_async(ranked(folder)) as client:
        with pytest.raises(RequestFailedError, match="alone"):
            await client.submit(OmniRequest({"n": 1, "fails on": "all"}))
        await asyncio.sleep(6)
        assert (await client.submit(OmniRequest({"n": 2})))["act"] == {"n": 4.0}
        assert client.health()["act"]["restarts"] == 0


@pytest.mark.full
async def test_a_merge_that_cannot_be_sent_to_the_ranks_fails_its_request_alone(folder: Path) -> None:
    config = make_pipeline(
        folder,
        step("start", next="act"),
        StageConfig(
            name="act",
            factory="standstill_stages:summed",
            tp_size=2,
            wait_for=["start"],
            merge_fn="standstill_stages:unsendable_merge",
            terminal=True,
        ),
    )
    async with open_async(config) as client:
        others = [asyncio.create_task(client.submit(OmniRequest({"n": n}))) for n in range(20)]
        with pytest.raises(RequestFailedError, match="cannot be sent") as caught:
            await client.submit(OmniRequest({"n": -1}))
        assert (caught.value.stage, caught.value.error_type) == ("act", "CodecError")
        assert [(await each)["act"]["n"] for each in others] == [2.0 * n for n in range(20)]
        assert client.health()["act"]["restarts"] == 0
