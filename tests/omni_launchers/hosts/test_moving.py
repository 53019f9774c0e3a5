"""A unit that comes back on another machine: the others reach it there, by the network and another relay."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from over_hosts import HERE, THERE, free_address, omni_hosts

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import EndpointsConfig, LauncherConfig, PipelineConfig, StageConfig
from omni_core.errors import OmniError
from omni_core.hookspecs import works
from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest

COUNT = 200_000
"""Numbers in a payload: 1.6 MB, which only a relay carries."""


async def total(pipe: AsyncPipe) -> Any:
    answer = (await pipe.submit(OmniRequest({"count": COUNT})))["total"]
    assert answer["total"] == COUNT * (COUNT - 1) / 2
    return answer["pid"]


async def test_a_unit_moves_between_machines_and_its_peers_follow(folder: Path, key_file: Path) -> None:
    found = {each.name: answer for hook, each, _, answer in load_plugins().check() if hook == "omni_relays"}
    if not all(works(found.get(name, "not installed")) for name in ("shm", "nixl")):
        pytest.skip("needs a relay for each case: shm and nixl")
    address = free_address(THERE)
    config = PipelineConfig(
        model_path="none",
        stages=[
            StageConfig(name="big", factory="host_stages:big", process="big", next="total"),
            StageConfig(name="total", factory="host_stages:total", process="total", terminal=True),
        ],
        launcher=LauncherConfig("moving:Moving"),
        endpoints=EndpointsConfig(str(folder), HERE, str(key_file)),
        hosts={"b": address},
    )
    async with omni_hosts("serve", "--listen", address, "--key", str(key_file)) as server, open_async(config) as pipe:
        parents = []
        for _ in range(3):
            pid = await total(pipe)
            parents.append(psutil.Process(pid).ppid())
            await asyncio.gather(*(total(pipe) for _ in range(8)))
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                while True:
                    with suppress(OmniError):
                        if await total(pipe) != pid:
                            break
                    await asyncio.sleep(0.05)
        assert parents == [os.getpid(), server.pid, os.getpid()]
