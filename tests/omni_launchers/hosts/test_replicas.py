"""Replicas of one stage on several hosts, from the start or added while requests run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest
from attrs import evolve
from over_hosts import THERE, ask, free_address, omni_hosts, two_hosts

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, StartupError

pytest.importorskip("omni_cli.live")


def on(config: PipelineConfig, **fields: object) -> PipelineConfig:
    """Return the config with other fields of the stage ``far``."""
    stages = [evolve(stage, **fields) if stage.name == "far" else stage for stage in config.stages]
    return evolve(config, stages=stages)


async def parents(pipe: AsyncPipe) -> set[int]:
    """Return the parents of the processes that answer eight requests."""
    answers = await asyncio.gather(*(ask(pipe, "far") for _ in range(8)))
    return {psutil.Process(answer["pid"]).ppid() for answer in answers}


async def test_a_stage_is_scaled_onto_another_host_and_back(folder: Path, key_file: Path) -> None:
    address, further = free_address(THERE), free_address("127.0.0.3")
    config = two_hosts(folder, key_file, address)
    config = evolve(config, hosts={**config.hosts, "c": further})
    serve = ("--key", str(key_file))
    async with (
        omni_hosts("serve", "--listen", address, *serve) as b,
        omni_hosts("serve", "--listen", further, *serve) as c,
        open_async(config) as pipe,
    ):
        assert await parents(pipe) == {b.pid}
        await pipe.scale("far", 3, {"host": ["b", "c", None]})
        assert await parents(pipe) == {b.pid, c.pid, os.getpid()}
        with pytest.raises(ConfigError, match="replica 0 of far runs elsewhere"):
            await pipe.scale("far", 4, {"host": ["c", "c", None, "b"]})
        with pytest.raises(ConfigError, match=r"stages\[far\].host: no host is called 'd'"):
            await pipe.scale("far", 4, {"host": ["b", "c", None, "d"]})
        await pipe.replace("far")
        assert await parents(pipe) == {b.pid, c.pid, os.getpid()}
        await pipe.scale("far", 1)
        assert await parents(pipe) == {b.pid}


async def test_a_host_that_is_not_there_leaves_the_others_serving(folder: Path, key_file: Path) -> None:
    address = free_address(THERE)
    config = two_hosts(folder, key_file, address)
    config = evolve(config, hosts={**config.hosts, "c": free_address("127.0.0.3")})
    async with omni_hosts("serve", "--listen", address, "--key", str(key_file)) as b, open_async(config) as pipe:
        with pytest.raises(StartupError, match=r"hosts.c: .*\nfar.1 was not added"):
            await pipe.scale("far", 2, {"host": ["b", "c"]})
        assert await parents(pipe) == {b.pid}
        assert set(pipe.health()) == {"choose", "near", "far"}


async def test_replicas_of_a_config_are_on_their_hosts(folder: Path, key_file: Path) -> None:
    address = free_address(THERE)
    config = on(two_hosts(folder, key_file, address), replicas=2, host=["b", None])
    async with omni_hosts("serve", "--listen", address, "--key", str(key_file)) as b, open_async(config) as pipe:
        assert await parents(pipe) == {b.pid, os.getpid()}
