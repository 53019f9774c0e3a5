"""Stages on a cluster are replaced and scaled while requests run, and what was claimed for them is given back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from over_nodes import ask, pipeline, raylet_of

from omni_core.client import AsyncPipe, open_async
from omni_core.errors import StartupError
from omni_testing.ours.ray import LocalCluster

pytest.importorskip("omni_cli.live")


def claimed() -> float:
    """Return the processors that are reserved in the cluster."""
    from ray.util.placement_group import placement_group_table

    groups: Any = placement_group_table().values()
    alive = [group for group in groups if group["state"] in ("CREATED", "PENDING", "RESCHEDULING")]
    return round(sum(bundle.get("CPU", 0.0) for group in alive for bundle in group["bundles"].values()), 3)


async def nodes(pipe: AsyncPipe, to: str) -> dict[int, int]:
    """Return the processes that answer eight requests, and their nodes."""
    answers = await asyncio.gather(*(ask(pipe, to, count=8) for _ in range(8)))
    return {answer["pids"][1]: raylet_of(answer["pids"][1]) for answer in answers}


async def test_stages_are_scaled_and_replaced_under_requests(cluster: LocalCluster, folder: Path) -> None:
    config = pipeline(cluster, folder)
    stages = [evolve(stage, gpu=0) if stage.name == "one" else stage for stage in config.stages]
    failures: list[BaseException] = []

    async def load(pipe: AsyncPipe, to: str) -> None:
        while True:
            try:
                await ask(pipe, to)
            except Exception as error:
                failures.append(error)

    async with open_async(evolve(config, stages=stages)) as pipe:
        before = claimed()
        running = [asyncio.ensure_future(load(pipe, to)) for to in ("one", "two")]
        (old,), (first,) = await nodes(pipe, "two"), await nodes(pipe, "one")
        home = raylet_of(old)
        await pipe.scale("two", 3)
        assert claimed() == pytest.approx(before + 0.2)
        three = await nodes(pipe, "two")
        assert len(three) == 3
        assert set(three.values()) == {home}, "its label is that of one node"
        await pipe.scale("two", 1)
        assert claimed() == pytest.approx(before)
        assert await nodes(pipe, "two") == {old: home}
        for _ in range(2):  # the second one gets the claim of the start
            await pipe.replace("two")
        assert claimed() == pytest.approx(before)
        assert old not in await nodes(pipe, "two")
        visible = (await ask(pipe, "one"))["gpus"]
        await pipe.replace("one", {"gpu": 1})
        assert first not in await nodes(pipe, "one")
        assert {visible, (await ask(pipe, "one"))["gpus"]} == {"0", "1"}, "another device while the old one is in use"
        with pytest.raises(StartupError, match=r"no node of the Ray cluster can hold two\.\d+ \(.*64 CPU"):
            await pipe.replace("two", {"cpus": 64.0})
        assert claimed() == pytest.approx(before + 0.1), "the new device's, and the first one's, which is kept"
        for each in running:
            each.cancel()
    assert failures == []
