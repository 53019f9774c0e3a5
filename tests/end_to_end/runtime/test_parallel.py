"""Tensor parallel stages and replicas, in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from parallel_stages import WIDTH, weight
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig, RestartConfig, StageConfig
from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest


def stage(name: str, function: str, **fields: object) -> StageConfig:
    return StageConfig(name=name, factory=f"parallel_stages:{function}", **{"process": name, **fields})  # type: ignore[arg-type]


def parallel(folder: Path) -> PipelineConfig:
    return make_pipeline(
        folder,
        stage("start", "vector", next="linear"),
        stage("linear", "linear", process=None, tp_size=2, factory_args={"log": str(folder)}, terminal=True),
    )


def expected(n: int) -> torch.Tensor:
    return torch.arange(n, n + WIDTH, dtype=torch.float64).cos() @ weight()


async def equal_logs(folder: Path) -> list[str]:
    """Return what the ranks have written, once it is equal: the last of them may write after the answer is here."""
    async with asyncio.timeout(60):
        while len(set(logs := [(folder / f"rank{rank}").read_text() for rank in range(2)])) > 1:
            await asyncio.sleep(0.02)
    return logs


async def test_ranks_share_the_work_and_make_the_same_decisions(run_folder: Path) -> None:
    async with open_async(parallel(run_folder)) as client:
        assert set(client.process_ids) == {"start", "linear_tp0", "linear_tp1"}

        async def ask(n: int) -> None:
            answer = (await client.submit(OmniRequest({"n": n})))["linear"]
            assert torch.allclose(answer["y"], expected(n), atol=1e-9)
            assert answer["pid"] == client.process_ids["linear_tp0"]

        await asyncio.gather(*(ask(n) for n in range(150)))
        logs = await equal_logs(run_folder)
        assert "\n" in logs[0]
        assert sorted(map(int, logs[0].split())) == list(range(150))
        for rank in range(2):
            (run_folder / f"rank{rank}").unlink()


@pytest.mark.full
async def test_a_rank_that_starts_late_gets_every_message(run_folder: Path) -> None:
    config = make_pipeline(
        run_folder,
        stage("start", "vector", next="count"),
        stage("count", "slow_to_begin", process=None, tp_size=2, factory_args={"log": str(run_folder)}, terminal=True),
    )
    async with open_async(config) as client:
        await asyncio.gather(*(client.submit(OmniRequest({"n": n})) for n in range(20)))
        logs = await equal_logs(run_folder)
        assert sorted(map(int, logs[0].split())) == list(range(20))
    for rank in range(2):
        (run_folder / f"rank{rank}").unlink()


async def test_replicas_take_turns_and_keys_stick(run_folder: Path) -> None:
    config = make_pipeline(
        run_folder,
        stage("start", "inputs", next="work"),
        stage("work", "who", terminal=True, replicas=3, affinity_key="session"),
        restart=RestartConfig(backoff=60.0, backoff_limit=60.0),  # the one that is killed twice stays away
    )
    async with open_async(config) as client:
        assert set(client.process_ids) == {"start", "work.0", "work.1", "work.2"}
        answers = await asyncio.gather(*(client.submit(OmniRequest({"n": n})) for n in range(60)))
        assert Counter(each["work"]["replica"] for each in answers) == {0: 20, 1: 20, 2: 20}
        assert len({each["work"]["pid"] for each in answers}) == 3
        homes = {}
        for key in range(12):
            sessions = [OmniRequest({"n": 0}, metadata={"session": key}) for _ in range(5)]
            replies = await asyncio.gather(*(client.submit(each) for each in sessions))
            (homes[key],) = {each["work"]["replica"] for each in replies}
        assert set(homes.values()) == {0, 1, 2}
        gone = homes[0]
        unit = f"work.{gone}"
        first = client.process_ids[unit]
        os.kill(first, signal.SIGKILL)  # its first restart is at once, as fast as a fork
        while client.process_ids.get(unit, first) == first or client.health()[unit]["state"] != "ready":
            await asyncio.sleep(0.01)
        os.kill(client.process_ids[unit], signal.SIGKILL)
        while client.health()[unit]["state"] == "ready":
            await asyncio.sleep(0.01)
        for key, home in homes.items():
            reply = await client.submit(OmniRequest({"n": 0}, metadata={"session": key}))
            assert (reply["work"]["replica"] == home) == (home != gone)


def test_replicas_are_validated(run_folder: Path) -> None:
    from omni_core.config.validation import validate

    config = make_pipeline(
        run_folder,
        stage("a", "inputs", process="p", next="b"),
        stage("b", "inputs", process="p", replicas=2, terminal=True),
    )
    with pytest.raises(ConfigError, match=r"process 'p'.*different `replicas`"):
        validate(config)
