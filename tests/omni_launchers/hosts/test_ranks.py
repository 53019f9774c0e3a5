"""Ranks of one stage on several hosts: the same ids as on one, and one that is lost takes the others with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from over_hosts import HERE, THERE, free_address, omni_hosts
from rank_stages import WIDTH, rows

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.errors import StartupError
from omni_core.protocol.messages import OmniRequest

REQUESTS = range(12)


def ranks(folder: Path, key_file: Path, there: str) -> PipelineConfig:
    """Return a pipeline with a rank here and one on host ``b``."""
    return PipelineConfig(
        model_path="none",
        stages=[StageConfig(name="ids", factory="rank_stages:ids", tp_size=2, terminal=True, host=[None, "b"])],
        endpoints=EndpointsConfig(str(folder), HERE, str(key_file)),
        hosts={"b": there},
        retries=3,
    )


def on_one_host(n: int) -> list[int]:
    """Return the ids of a request, with the sums that two ranks of one host make."""
    x, found = torch.arange(n, n + WIDTH, dtype=torch.float32).cos(), []
    for _ in range(8):
        first, second = (x.chunk(2)[rank] @ rows(rank, 2) for rank in range(2))
        found.append(int((first + second).argmax()))
        x = x.roll(found[-1])
    return found


async def ask(pipe: AsyncPipe) -> list[Any]:
    return await asyncio.gather(*(pipe.submit(OmniRequest({"n": n})) for n in REQUESTS))


async def test_ranks_on_two_hosts_give_the_ids_of_one_and_restart_together(folder: Path, key_file: Path) -> None:
    wanted = [on_one_host(n) for n in REQUESTS]
    assert len({tuple(each) for each in wanted}) > 1
    b = free_address(THERE)
    serve = ("serve", "--listen", b, "--key", str(key_file))
    async with omni_hosts(*serve) as lost, open_async(ranks(folder, key_file, b)) as pipe:
        answers = [answer["ids"] for answer in await ask(pipe)]
        assert [answer["ids"] for answer in answers] == wanted
        assert answers[0]["rendezvous"].startswith(f"tcp://{HERE}:")
        before = pipe.process_ids
        assert psutil.Process(before["ids_tp1"]).ppid() == lost.pid
        assert {answer["pid"] for answer in answers} == {before["ids_tp0"]}
        lost.kill()
        await lost.wait()
        waiting = asyncio.ensure_future(ask(pipe))
        async with omni_hosts(*serve) as again:
            answers = [answer["ids"] for answer in await asyncio.wait_for(waiting, 120)]
            assert [answer["ids"] for answer in answers] == wanted
            after = pipe.process_ids
            assert not set(before.values()) & set(after.values())
            assert psutil.Process(after["ids_tp1"]).ppid() == again.pid
            assert pipe.health()["ids"]["restarts"] >= 1


async def test_the_host_of_a_rank_that_is_not_there_is_named(folder: Path, key_file: Path) -> None:
    with pytest.raises(StartupError, match=r"hosts\.b: "):
        async with open_async(ranks(folder, key_file, free_address(THERE))):
            pass
