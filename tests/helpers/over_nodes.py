"""Pipelines over the nodes of a cluster, and the nodes of their processes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from omni_core.client import AsyncPipe
from omni_core.config.schema import EndpointsConfig, LauncherConfig, PipelineConfig, StageConfig
from omni_core.errors import OmniError
from omni_core.protocol.messages import OmniRequest
from omni_testing.ours.ray import LocalCluster

COUNT = 200_000
"""Numbers in a payload: 1.6 MB, which only a relay carries."""


def launcher(cluster: LocalCluster, **settings: Any) -> LauncherConfig:
    return LauncherConfig("ray", {"address": cluster.address, "ready_seconds": 120.0, **settings})


def pipeline(cluster: LocalCluster, folder: Path, one: str = "b", two: str = "c", **fields: Any) -> PipelineConfig:
    """Return a pipeline whose first stage is in rack b, and sends to ``one`` or ``two`` in racks of their own."""
    stages = [
        StageConfig(
            name="begin",
            factory="ray_stages:begin",
            process="begin",
            next=["one", "two"],
            route_fn="ray_stages:route",
            labels={"rack": "b"},
        ),
        StageConfig(name="one", factory="ray_stages:total", process="one", terminal=True, labels={"rack": one}),
        StageConfig(name="two", factory="ray_stages:total", process="two", terminal=True, labels={"rack": two}),
    ]
    return PipelineConfig(
        model_path="none",
        stages=stages,
        launcher=launcher(cluster),
        terminal_stages_fn="ray_stages:terminals",
        endpoints=EndpointsConfig(str(folder)),
        **fields,
    )


async def ask(pipe: AsyncPipe, to: str = "one", seconds: float = 0.0, count: int = COUNT) -> Any:
    """Send a request, and return the answer of the stage that it went to, which was checked."""
    answer = (await pipe.submit(OmniRequest({"to": to, "count": count, "seconds": seconds})))[to]
    assert answer["total"] == count * (count - 1) / 2
    return answer


async def serves_again(pipe: AsyncPipe, to: str, but: int, seconds: float = 120.0) -> Any:
    """Ask until another process than ``but`` answers; while a stage is restarted, requests wait or fail."""
    async with asyncio.timeout(seconds):
        while True:
            with suppress(OmniError):
                answer = await ask(pipe, to)
                if answer["pids"][-1] != but:
                    return answer
            await asyncio.sleep(0.05)


def raylet_of(pid: int) -> int:
    """Return the pid of the raylet among the parents of a stage process; 0: it is the runner's child."""
    for each in psutil.Process(pid).parents():
        with suppress(psutil.NoSuchProcess):
            if each.name() == "raylet":
                return int(each.pid)
    return 0


def agent_of(pid: int) -> int:
    """Return the pid of the Ray worker that is the agent of a stage process."""
    server, agent = psutil.Process(pid).parents()[:2]
    assert "omni_launchers.ray.serving" in server.cmdline()
    return agent.pid


def gone(pids: list[int]) -> bool:
    """Return whether processes have ended."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True
