"""A whole pipeline on each installed relay that can work here. ``RelayConformance`` tests the relays alone."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from pipelines import make_pipeline
from tiers import few

from omni_core.client import open_async
from omni_core.config.schema import StageConfig
from omni_core.hookspecs import works
from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest

pytest.importorskip("torch")

USABLE = [each.name for hook, each, _, answer in load_plugins().check() if hook == "omni_relays" and works(answer)]


@pytest.mark.parametrize("relay", few(USABLE, 1))
async def test_tensors_of_every_size_arrive_and_leave_nothing(relay: str) -> None:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        config = make_pipeline(
            Path(folder),
            StageConfig(name="big", factory="pipeline_stages:big", process="big", next="total"),
            StageConfig(name="total", factory="pipeline_stages:total", process="total", terminal=True),
            relay_backend=relay,
        )
        async with open_async(config) as client:
            for count in (1, 10_000, 3_000_000):
                answer = await client.submit(OmniRequest({"count": count}))
                assert answer["total"] == pytest.approx(count * (count - 1) / 2, rel=1e-6)
            answers = await asyncio.gather(*(client.submit(OmniRequest({"count": 500_000 + n})) for n in range(20)))
            assert len({each["total"] for each in answers}) == 20
            async with asyncio.timeout(60):
                while (await client.statistics())["big"]["relay"] != {"slots_in_use": 0, "bytes_in_use": 0}:
                    await asyncio.sleep(0.05)
