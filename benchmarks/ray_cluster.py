"""Start and memory of a Ray cluster on this machine, and of the demo on it, beside the demo without Ray.

The cluster is a head and two nodes, with GPUs that do not exist. The thinking stages of the demo are one process on one node, the speaking
ones on the other; without Ray they are two processes of this machine.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import click
import psutil
from attrs import evolve
from report import Row, alone, compare, json_option, publish, quick_option

from omni_core.client import open_async
from omni_core.config.schema import LauncherConfig, PipelineConfig
from omni_demo.speech.pipeline import CHECKPOINT, demo
from omni_testing.ours.ray import LocalCluster

SPEAKING = ("talker_ar", "code2wav")


def pipeline(launcher: LauncherConfig) -> PipelineConfig:
    """Return the demo in two processes, with a launcher."""
    config = demo(str(CHECKPOINT))
    is_ray = launcher.name == "ray"
    stages = [
        evolve(
            stage,
            process="speaking" if stage.name in SPEAKING else "thinking",
            labels={"rack": "c" if stage.name in SPEAKING else "b"} if is_ray else {},
        )
        for stage in config.stages
    ]
    return evolve(config, launcher=launcher, stages=stages)


def memory(processes: list[psutil.Process]) -> float:
    """Return the MiB of processes, each with its share of what it shares (PSS)."""
    return sum(each.memory_full_info().pss for each in processes if each.is_running()) / 2**20


def of_ray() -> list[psutil.Process]:
    """Return the processes of the cluster: they are children of this one."""
    return psutil.Process().children(recursive=True)


async def run(launcher: LauncherConfig) -> tuple[float, float, float, float]:
    """Return the seconds until the demo is ready and of one reply after another, MiB of its stages, and of what starts them."""
    begin = time.perf_counter()
    async with open_async(pipeline(launcher)) as pipe:
        ready = time.perf_counter() - begin
        await pipe.chat("Hello", seed=1)
        begin = time.perf_counter()
        await pipe.chat("Hello", seed=1)
        reply = time.perf_counter() - begin
        stages = [psutil.Process(pid) for unit in pipe.health().values() for pid in unit["pids"]]
        parents = {parent for each in stages for parent in each.parents()[:2]} if launcher.name == "ray" else set()
        return ready, reply, memory(stages), memory(list(parents))


@click.command()
@quick_option
@json_option
def main(quick: bool, json_path: Path | None) -> None:
    """Measure."""
    begin = time.perf_counter()
    with closing(LocalCluster("b", "c")) as cluster:
        rows: list[Row] = [
            alone("cluster of a head and two nodes: start", "s", [time.perf_counter() - begin]),
            alone("cluster: memory (PSS)", "MiB", [memory(of_ray())]),
        ]
        ray = LauncherConfig("ray", {"address": cluster.address})
        rounds = [(asyncio.run(run(ray)), asyncio.run(run(LauncherConfig("local")))) for _ in range(1 if quick else 5)]
        ours, other = zip(*rounds, strict=True)
        for index, (name, unit) in enumerate(
            [("ready", "s"), ("a reply with speech", "s"), ("memory of its stages (PSS)", "MiB")]
        ):
            rows.append(
                compare(
                    f"demo on two nodes: {name}",
                    unit,
                    [each[index] for each in ours],
                    [each[index] for each in other],
                    "without Ray",
                    higher_is_better=False,
                )
            )
        rows.append(alone("demo: memory of two agents and host servers (PSS)", "MiB", [each[3] for each in ours]))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
