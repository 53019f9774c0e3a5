"""The host server of a run on a node: ``python -m omni_launchers.ray.serving ADDRESS``, with the keys as two lines on standard input.

It writes the address at which it listens, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys

from omni_core.runtime_api import join_address
from omni_launchers.hosts import versions
from omni_launchers.hosts.curve import CurveKeys
from omni_launchers.hosts.server import HostServer


async def serve(host: str, keys: CurveKeys) -> None:
    """Serve until the end of standard input."""
    versions.installed()  # which a run is opened with: plugins are loaded before anyone waits for an answer
    server = HostServer(join_address(host, 0), keys)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    print(server.address, flush=True)
    await ended.wait()
    await server.close()


if __name__ == "__main__":
    public, secret = sys.stdin.readline().strip(), sys.stdin.readline().strip()
    asyncio.run(serve(sys.argv[1], CurveKeys(public, secret)))
