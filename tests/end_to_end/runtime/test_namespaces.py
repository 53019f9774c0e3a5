"""A pipeline over two hosts that are two network namespaces joined by a veth pair: only the configured addresses are
reachable. Needs the right to make namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from omni_core.plugins import load_plugins

pytestmark = pytest.mark.full

A, B = "10.197.31.1", "10.197.31.2"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[str, str]]:
    """Two namespaces, at the addresses A and B, joined by a veth pair."""
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    names = (f"omni-a-{os.getpid()}", f"omni-b-{os.getpid()}")
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ends = (f"oa{os.getpid()}", f"ob{os.getpid()}")
            ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for name, end, address in zip(names, ends, (A, B), strict=True):
                ip("link", "set", end, "netns", name)
                ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
                ip("-n", name, "link", "set", end, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        yield names
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


RUNNER = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    import over_addresses
    from omni_core.client import open_async
    from omni_core.config.schema import RelayConfig

    async def main():
        folder, key, address, relay = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
        config = over_addresses.two_hosts(folder, key, address, relay=RelayConfig(backend=relay, slot_size_mb=16))
        async with open_async(config) as client:
            for count in (10, 100_000, 3_000_000):
                await over_addresses.total(client, count)
            await asyncio.gather(*(over_addresses.total(client, 50_000 + number) for number in range(20)))
            print("all right")

    over_addresses.HERE = sys.argv[5]
    asyncio.run(main())
    """)


@pytest.mark.parametrize("relay", ["nixl", "mooncake"])
def test_a_pipeline_across_network_namespaces(
    relay: str,
    namespaces: tuple[str, str],
    folder: Path,
    key_file: Path,
) -> None:
    problems = {each.name: problem for _, each, _, problem in load_plugins().check()}
    if problems.get(relay, "not installed") is not None:
        pytest.skip(f"{relay}: {problems.get(relay, 'not installed')}")
    environment = {**os.environ, "UCX_TLS": "tcp,self"}
    here, there = (["ip", "netns", "exec", name] for name in namespaces)
    python = [sys.executable]
    listen = ["-m", "omni_core.cli", "hosts", "serve", "--listen", f"tcp://{B}:0", "--key", str(key_file)]
    server = subprocess.Popen([*there, *python, *listen], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[2].rstrip(";")
        arguments = ["-c", RUNNER, str(folder), str(key_file), address, relay, A]
        ended = subprocess.run(
            [*here, *python, *arguments], capture_output=True, text=True, timeout=200, env=environment, check=False
        )
        assert ended.stdout == "all right\n", ended.stderr[-3000:]
    finally:
        server.terminate()
        server.wait(60)
