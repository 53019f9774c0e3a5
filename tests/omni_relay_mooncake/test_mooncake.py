"""The Mooncake relay on real TCP, CPU memory, loopback."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipelines import make_pipeline

from omni_core.client import open_pipeline
from omni_core.config.schema import StageConfig
from omni_core.errors import RelayError
from omni_core.protocol.messages import OmniRequest
from omni_core.testing import PluginConformance, RelayConformance
from omni_core.transport.relay import RelayOptions
from omni_relay_mooncake.plugin import probe
from omni_relay_mooncake.relay import MooncakeRelay

pytestmark = pytest.mark.skipif(probe() is not None, reason=str(probe()))


class TestMooncake(RelayConformance):
    relay = "omni_relay_mooncake.relay:MooncakeRelay"


class TestPlugin(PluginConformance):
    entry_point = "relay-mooncake"


async def test_a_whole_pipeline_sends_its_tensors_this_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Path(__file__).parents[1] / "omni_core"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stages), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        config = make_pipeline(
            Path(folder),
            StageConfig(name="big", factory="pipeline_stages:big", process="big", next="total"),
            StageConfig(name="total", factory="pipeline_stages:total", process="total", terminal=True),
            relay_backend="mooncake",
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


class InNamespace(RelayConformance):
    relay = TestMooncake.relay


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with nothing but its own loopback."""
    name = f"omni-mooncake-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False, timeout=10)
    if made.returncode != 0:
        pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True, timeout=10)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True, timeout=10)


def listening(*command: str) -> set[str]:
    """The ports that are listened on where ``command`` runs."""
    tables = ["/proc/net/tcp", "/proc/net/tcp6"]
    shown = subprocess.run([*command, "cat", *tables], capture_output=True, text=True, check=True, timeout=10)
    rows = [line.split() for line in shown.stdout.splitlines()]
    return {row[1].rpartition(":")[2] for row in rows if len(row) > 3 and row[3] == "0A"}


async def test_inside_a_namespace_nobody_outside_can_reach_the_engine(namespace: str) -> None:
    suite = InNamespace()
    InNamespace.options = {"settings": {"network_namespace": namespace}}
    before = listening()
    async with suite.pair() as (relay, peer):
        operation = await relay.put_async(b"bytes" * 1000, "r")
        digest = await peer.ask("digest", metadata=operation.metadata, nbytes=5000)
        assert digest == hashlib.sha256(b"bytes" * 1000).hexdigest()
        await operation.wait_for_completion(5)
        inside = listening("ip", "netns", "exec", namespace)
        assert len(inside) >= 4  # two per engine
        assert not (listening() - before) & inside


async def test_a_namespace_that_is_not_there_is_said() -> None:
    options = RelayOptions(settings={"network_namespace": "no-such-one"})
    relay = MooncakeRelay(options)
    with pytest.raises(RelayError, match="ip netns add no-such-one"):
        await relay.put_async(b"x", "r")
    relay.close()
