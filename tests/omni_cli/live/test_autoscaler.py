"""Carrying out what a policy decides; the pipeline is a record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from omni_cli.live.autoscale import AutoscaleSettings, Demand
from omni_cli.live.autoscaler import Autoscaler
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, OmniError
from omni_core.processes.supervisor import Role

WANTED: list[int] = []
"""The decisions of the policy, one after another."""
SEEN: list[Demand] = []


class Scripted:
    """A policy that decides what the test says."""

    def __init__(self, settings: AutoscaleSettings) -> None:
        SEEN.clear()

    def decide(self, demand: Demand, now: float) -> int:
        SEEN.append(demand)
        return WANTED.pop(0) if WANTED else demand.replicas


class Pipeline:
    """A running pipeline with one unit, and what was asked of it."""

    def __init__(self, **autoscale: Any) -> None:
        given = {"max": 4, "policy": f"{__name__}:Scripted", "idle_seconds": 50.0, **autoscale}
        stage = StageConfig(name="a", factory="m:f", process="p", terminal=True, autoscale=given)
        config = PipelineConfig(model_path="none", stages=[stage])
        self.units: dict[str, Any] = {}
        self.in_flight = 1
        self.calls: list[tuple[str, int, Mapping[str, Any]]] = []
        self.error: OmniError | None = None
        self.silent: set[str] = set()
        self.values = {"queued": 3.0, "waiting": 2.0, "in_flight": 5.0, "completed": 7.0}
        running: Any = SimpleNamespace(
            config=config, units=self.units, coordinator=self, observation=SimpleNamespace(counters=self.counters)
        )
        self.add("p")
        self.autoscaler = Autoscaler(running, self.scale)

    def add(self, name: str, role: Role = Role.SERVING) -> None:
        spec = SimpleNamespace(group="p", processes=[SimpleNamespace(name=name)])
        self.units[name] = SimpleNamespace(spec=spec, role=role, life=SimpleNamespace(serves=True))

    async def counters(self, processes: list[Any], timeout: float) -> dict[str, Any]:
        return {each.name: {"a": dict(self.values)} for each in processes if each.name not in self.silent}

    async def scale(self, name: str, replicas: int, settings: Mapping[str, Any]) -> bool:
        self.calls.append((name, replicas, settings))
        if self.error is not None:
            raise self.error
        return True

    async def look(self, times: int) -> None:
        """Let it look so often, then let the work end."""
        self.autoscaler.begin()
        self.autoscaler.begin()  # what has begun goes on
        async with asyncio.timeout(60):
            while len(SEEN) < times:
                await asyncio.sleep(0.001)
        self.in_flight = 0
        for name in list(self.units)[1:]:
            del self.units[name]
        await asyncio.sleep(0.05)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.live.autoscaler.LOOK_SECONDS", 0.002)
    WANTED.clear()


async def test_what_is_decided_is_done_within_the_bounds() -> None:
    pipeline = Pipeline(gpu=[4, 5, 6, 7], host=["x", None, "y", "z"])
    WANTED[:] = [1, 3, 9, 1]
    await pipeline.look(5)
    settings = [{"gpu": [4, 5, 6], "host": ["x", None, "y"]}, {"gpu": [4, 5, 6, 7], "host": ["x", None, "y", "z"]}]
    assert pipeline.calls == [("p", 3, settings[0]), ("p", 4, settings[1])]


async def test_the_demand_is_that_of_the_replicas_that_get_requests() -> None:
    pipeline = Pipeline()
    pipeline.add("p.1")
    pipeline.add("p.2", Role.DRAINING)
    pipeline.add("p.3", Role.JOINING)
    await pipeline.look(1)
    assert SEEN[0] == Demand(replicas=2, waiting=6.0, requests=10.0, completed=14.0)


async def test_a_process_that_is_too_busy_to_answer_is_as_it_was_and_not_idle() -> None:
    pipeline = Pipeline()
    pipeline.add("p.1")
    pipeline.silent.add("p.1")
    await pipeline.look(1)
    assert SEEN[0] == Demand(replicas=2, waiting=3.0, requests=6.0, completed=7.0)
    pipeline = Pipeline()
    pipeline.autoscaler.begin()
    while not SEEN:
        await asyncio.sleep(0)
    pipeline.silent.add("p")
    await pipeline.look(4)
    assert SEEN[-1] == Demand(replicas=1, waiting=3.0, requests=5.0, completed=7.0)
    pipeline = Pipeline()
    pipeline.values = dict.fromkeys(pipeline.values, 0.0)
    pipeline.autoscaler.begin()
    while not SEEN:
        await asyncio.sleep(0)
    pipeline.silent.add("p")
    await pipeline.look(4)
    assert SEEN[-1] == Demand(replicas=1, waiting=0.0, requests=1.0, completed=0.0)


async def test_after_a_failure_it_is_not_tried_again_at_once() -> None:
    pipeline = Pipeline()
    pipeline.error = OmniError("no place")
    WANTED[:] = [2, 2, 2]
    await pipeline.look(3)
    assert len(pipeline.calls) == 1


async def test_without_work_and_with_the_least_replicas_nothing_is_looked_at() -> None:
    pipeline = Pipeline()
    await pipeline.look(3)
    looks = len(SEEN)
    await asyncio.sleep(0.05)
    assert len(SEEN) == looks
    pipeline.in_flight = 1
    await pipeline.look(looks + 1)
    pipeline.autoscaler.close()


async def test_it_looks_on_while_there_are_more_than_the_least() -> None:
    pipeline = Pipeline()
    pipeline.in_flight = 0
    pipeline.add("p.1")
    await pipeline.look(5)


async def test_a_policy_that_cannot_be_imported_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"stages\[a\].autoscale.policy: .*module 'nonesuch' does not exist"):
        Pipeline(policy="nonesuch:Policy")
