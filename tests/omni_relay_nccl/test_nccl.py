"""The NCCL relay on gloo: CPU memory, loopback."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from pipelines import make_pipeline

from omni_core.client import open_pipeline
from omni_core.config.schema import StageConfig
from omni_core.hookspecs import works
from omni_core.protocol.messages import OmniRequest
from omni_core.testing import PluginConformance, RelayConformance
from omni_relay_nccl.plugin import probe

pytestmark = pytest.mark.skipif(not works(probe()), reason=str(probe()))


class TestNccl(RelayConformance):
    relay = "omni_relay_nccl.relay:NcclRelay"


class TestPlugin(PluginConformance):
    entry_point = "relay-nccl"
    targets_need = ("torch",)


async def test_a_whole_pipeline_sends_its_tensors_this_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Path(__file__).parents[1] / "omni_core"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stages), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        config = make_pipeline(
            Path(folder),
            StageConfig(name="big", factory="pipeline_stages:big", process="big", next="total"),
            StageConfig(name="total", factory="pipeline_stages:total", process="total", terminal=True),
            relay_backend="nccl",
        )
        async with open_pipeline(config) as client:
            for count in (1, 10_000, 3_000_000):
                answer = await client.submit(OmniRequest({"count": count}))
                assert answer["total"] == pytest.approx(count * (count - 1) / 2, rel=1e-6)
            answers = await asyncio.gather(*(client.submit(OmniRequest({"count": 500_000 + n})) for n in range(20)))
            assert len({each["total"] for each in answers}) == 20
            for _ in range(100):
                pool = (await client.statistics())["big"]["relay"]
                if not pool["slots_in_use"]:
                    break
                await asyncio.sleep(0.05)
            assert pool == {"slots_in_use": 0, "bytes_in_use": 0}
