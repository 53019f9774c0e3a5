"""Stages on several nodes: the payloads' ways, shared devices, and two pipelines in one cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from over_nodes import agent_of, ask, gone, launcher, pipeline, raylet_of

from omni_core.client import open_async
from omni_core.config.schema import LauncherConfig, PipelineConfig, StageConfig
from omni_core.errors import StartupError
from omni_core.protocol.messages import OmniRequest
from omni_testing.ours.ray import LocalCluster


def on_one_host(config: PipelineConfig) -> PipelineConfig:
    stages = [evolve(stage, labels={}) for stage in config.stages]
    return evolve(config, launcher=LauncherConfig("local"), stages=stages)


async def test_answers_are_those_of_one_host_and_payloads_go_by_shm_on_one_node_only(
    cluster: LocalCluster, folder: Path
) -> None:
    config = pipeline(cluster, folder)
    async with open_async(on_one_host(config)) as pipe:
        expected = [(await ask(pipe, to))["total"] for to in ("one", "two")]
    async with open_async(config) as pipe:
        await pipe.start_profile()
        one, two = await ask(pipe, "one"), await ask(pipe, "two")
        await pipe.stop_profile(folder / "trace.json")
        assert [one["total"], two["total"]] == expected
        begin, first, second = (raylet_of(pid) for pid in (*one["pids"], two["pids"][1]))
        assert begin == first != second != 0
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    ways = {each["name"]: each["args"]["by"] for each in events if "by" in each.get("args", {})}
    assert ways == {"send to one": "shm", "send to two": "nixl"}


async def test_units_of_one_host_are_on_one_node_and_have_its_devices_under_other_numbers(
    cluster: LocalCluster, folder: Path
) -> None:
    def stage(name: str, gpu: Any, **fields: Any) -> StageConfig:
        return StageConfig(name=name, factory="ray_stages:device", process=name, gpu=gpu, **fields)

    stages = [
        stage("x", 4, next="z"),
        stage("z", 7, host="together", next="w"),
        stage("w", 9, host="together", terminal=True),
    ]
    config = PipelineConfig(model_path="none", stages=stages, launcher=launcher(cluster, strategy="SPREAD"))
    async with open_async(config) as pipe:
        answer = (await pipe.submit(OmniRequest({})))["w"]
        health = pipe.health()
        raylets = {name: raylet_of(unit["pids"][0]) for name, unit in health.items()}
        assert raylets["x"] != raylets["z"] == raylets["w"]
        # The second GPU of a bundle of two, whatever number the pipeline gives it.
        assert answer["device"] == "cuda:1"
        assert sorted(answer["gpus"].split(",")) == ["0", "1"]


async def test_what_no_node_can_hold_is_refused_at_once_by_name(cluster: LocalCluster) -> None:
    thinker = StageConfig(name="thinker", factory="ray_stages:device", gpu=[0, 1, 2, 3], tp_size=4, terminal=True)
    config = PipelineConfig(model_path="none", stages=[thinker], launcher=launcher(cluster, ready_seconds=600.0))
    with pytest.raises(
        StartupError, match=r"no node of the Ray cluster can hold thinker \(.*4 GPU.*\); there are: .*2 GPU"
    ):
        async with asyncio.timeout(150), open_async(config):
            pass


async def test_what_is_in_use_is_waited_for_and_then_named(cluster: LocalCluster, folder: Path) -> None:
    def holding(process: str, **settings: Any) -> PipelineConfig:
        stage = StageConfig(
            name=process, factory="ray_stages:device", process=process, gpu=0, labels={"rack": "b"}, terminal=True
        )
        stages = [
            evolve(stage, name=f"{process}{number}", process=f"{process}{number}", gpu=number) for number in range(2)
        ]
        stages[0] = evolve(stages[0], terminal=False, next=f"{process}1")
        return PipelineConfig(model_path="none", stages=stages, launcher=launcher(cluster, **settings))

    async with open_async(holding("first")):
        with pytest.raises(
            StartupError, match=r"not reserved .* within 1 s .*second0 \(.*1 GPU.*free in the whole cluster"
        ):
            async with open_async(holding("second", ready_seconds=1.0)):
                pass
    async with open_async(holding("second", ready_seconds=120.0)):
        pass


async def test_two_pipelines_in_one_cluster_do_not_see_each_other(cluster: LocalCluster, folder: Path) -> None:
    config = pipeline(cluster, folder)
    async with open_async(config) as first:
        async with open_async(config) as second:
            mine, other = [(await ask(pipe, "two"))["pids"] for pipe in (first, second)]
            assert not set(mine) & set(other)
            assert raylet_of(mine[1]) == raylet_of(other[1])
            agents = {agent_of(mine[1]), agent_of(other[1])}
            assert len(agents) == 2
        async with asyncio.timeout(60):
            while not gone(other):
                await asyncio.sleep(0.05)
        assert (await ask(first, "two"))["pids"] == mine
