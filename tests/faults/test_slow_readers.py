"""Streams whose reader is slow: their stages wait with a bounded number of chunks, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fault_harness import SOON, step
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import StageConfig
from omni_core.errors import RequestAbortedError
from omni_core.protocol.messages import OmniRequest

MIB = 2**20


async def settled(made: Path) -> int:
    """Return how many chunks were made, once it are no more."""
    before, count = -1, 0
    while before != count or not count:
        await asyncio.sleep(0.3)
        before, count = count, int(made.read_text() or 0) if made.exists() else 0
    return count


@pytest.mark.parametrize("factory", ["make", pytest.param("Puts", marks=pytest.mark.full)])
async def test_a_client_that_reads_slowly_holds_up_its_stage(folder: Path, factory: str) -> None:
    stage = StageConfig(name="out", factory=f"slow_reader_stages:{factory}", process="out", terminal=True)
    async with open_async(make_pipeline(folder, step("start", next="out"), stage)) as client:
        made = folder / "made"
        inputs = {"n": 1, "chunks": 120, "nbytes": MIB, "made": str(made)}
        events = client.stream(OmniRequest(inputs, stream=True))
        seen = [(await anext(events)).data[0]]
        assert await settled(made) < 70, "8 MiB wait in the parent, 4 in a socket, and 4 MiB or 64 chunks in the stage"
        async for event in events:
            if not event.final:
                assert len(event.data) == MIB
                seen.append(event.data[0])
        assert seen == list(range(1, 121))


@pytest.mark.full
async def test_a_stage_that_reads_slowly_holds_up_the_one_before(folder: Path) -> None:
    config = make_pipeline(
        folder,
        StageConfig(name="out", factory="slow_reader_stages:make", process="out", next=["slow"], stream_to=["slow"]),
        StageConfig(
            name="slow",
            factory="slow_reader_stages:Read",
            factory_args={"seconds": 0.02},
            process="slow",
            terminal=True,
        ),
    )
    async with open_async(config) as client:
        made = folder / "made"
        inputs = {"n": 1, "chunks": 200, "nbytes": MIB, "made": str(made)}
        answer = asyncio.create_task(client.submit(OmniRequest(inputs)))
        queued = []
        while not answer.done():
            await asyncio.sleep(0.1)
            statistics = await client.statistics()
            # A process that is too busy does not answer in time.
            queued.append(statistics.get("slow", {}).get("slow", {}).get("queued", 0.0))
        assert 1 < max(queued) < 60
        assert int(made.read_text()) == 200
        assert (await answer)["slow"]["seen"] == [number % 250 for number in range(1, 201)]


@pytest.mark.full
@pytest.mark.parametrize("stream", [True, False])
async def test_a_generator_without_an_end_leaves_its_process_responsive(folder: Path, stream: bool) -> None:
    stage = StageConfig(name="out", factory="slow_reader_stages:make", process="p", terminal=True)
    async with open_async(make_pipeline(folder, stage)) as client:
        await _abort_endless(client, stream)
        answered = await asyncio.wait_for(client.submit(OmniRequest({"n": 2, "chunks": 0})), SOON)
        assert answered["out"] == {"n": 2}
        assert client.health()["p"]["restarts"] == 0


async def _abort_endless(client: AsyncPipe, stream: bool) -> None:
    endless = asyncio.create_task(client.submit(OmniRequest({"n": 1, "chunks": -1}, stream=stream), "endless"))
    await asyncio.sleep(1.0)
    statistics = await asyncio.wait_for(client.statistics(), 3.0)
    assert statistics["p"]["out"]["running"] <= 1
    await client.abort("endless")
    with pytest.raises(RequestAbortedError):
        await endless
