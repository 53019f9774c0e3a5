"""Features of the Mooncake relay alone; the contract is tested with every installed relay."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from omni_core.errors import RelayError
from omni_core.relay.base import RelayOptions
from omni_relay_mooncake.plugin import probe
from omni_relay_mooncake.relay import MooncakeRelay
from omni_testing import RelayConformance

pytestmark = pytest.mark.skipif(probe() is not None, reason=str(probe()))


class InNamespace(RelayConformance):
    relay = "omni_relay_mooncake.relay:MooncakeRelay"


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
    """Return the listening ports where ``command`` runs."""
    tables = ["/proc/net/tcp", "/proc/net/tcp6"]
    shown = subprocess.run([*command, "cat", *tables], capture_output=True, text=True, check=True, timeout=10)
    rows = [line.split() for line in shown.stdout.splitlines()]
    return {row[1].rpartition(":")[2] for row in rows if len(row) > 3 and row[3] == "0A"}


async def test_the_engine_in_a_namespace_is_unreachable_from_outside(namespace: str) -> None:
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


async def test_a_missing_namespace_is_named() -> None:
    options = RelayOptions(settings={"network_namespace": "no-such-one"})
    relay = MooncakeRelay(options)
    with pytest.raises(RelayError, match="ip netns add no-such-one"):
        await relay.put_async(b"x", "r")
    relay.close()
