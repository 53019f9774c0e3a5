"""Streams whose reader is slow: their stages wait with a bounded number of chunks, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fault_harness import step
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import StageConfig
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
