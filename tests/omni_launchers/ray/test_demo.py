"""The demo with its thinker on one node, and its talker and vocoder on another: the ids and samples of one host."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve
from over_nodes import launcher, raylet_of

from omni_core.client import Reply, open_async
from omni_core.config.schema import LauncherConfig, PipelineConfig
from omni_demo.speech.pipeline import CHECKPOINT, demo
from omni_testing.ours.ray import LocalCluster

SPEAKING = ("talker_ar", "code2wav")
QUESTIONS = ("What is your name?", "Hello")


def over_racks(config: PipelineConfig) -> PipelineConfig:
    """Return the config with a process in rack b for what understands, and one in rack c for what speaks."""

    def placed(stage: Any) -> Any:
        speaks = stage.name in SPEAKING
        labels = {"rack": "c" if speaks else "b"}
        return evolve(stage, process="speaking" if speaks else "thinking", labels=labels)

    return evolve(config, stages=[placed(stage) for stage in config.stages])


async def replies(config: PipelineConfig, nodes: int) -> list[Reply]:
    async with open_async(config) as pipe:
        assert len({raylet_of(unit["pids"][0]) for unit in pipe.health().values()}) == nodes
        return [await pipe.chat(question, seed=3) for question in QUESTIONS]


async def test_the_demo_speaks_across_nodes_as_on_one_host(cluster: LocalCluster) -> None:
    config = over_racks(demo(str(CHECKPOINT)))
    here = evolve(config, launcher=LauncherConfig("local"), stages=[evolve(each, labels={}) for each in config.stages])
    expected = await replies(here, 1)
    found = await replies(evolve(config, launcher=launcher(cluster)), 2)
    for one, other in zip(expected, found, strict=True):
        assert one.outputs["text"].token_ids == other.outputs["text"].token_ids
        assert len(one.outputs["text"].token_ids) > 1
        assert len(one.audio.samples) > 5000
        np.testing.assert_array_equal(one.audio.samples, other.audio.samples)
