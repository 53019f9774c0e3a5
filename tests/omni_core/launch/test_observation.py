"""Statistics of a running pipeline, asked by several at once; processes are replaced by answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import PluginError
from omni_core.launch.observation import Answers, Observation
from omni_core.plugins import PluginRegistry
from omni_core.processes.actions import UnitState
from omni_core.processes.supervisor import Role
from omni_core.protocol.messages import (
    FlushReport,
    FlushRequest,
    ProfileRequest,
    StageStatistics,
    StatisticsRequest,
)


async def test_one_answer_serves_all_callers() -> None:
    answers: Answers[int] = Answers()
    asked: list[str] = []
    questions = {"a": lambda: asked.append("a"), "b": lambda: asked.append("b")}
    patient = asyncio.create_task(answers.ask(questions, 5.0))
    hasty = asyncio.create_task(answers.ask(questions, 0.01))
    await asyncio.sleep(0)
    answers.take("a", 1)
    assert await hasty == {"a": 1}
    answers.take("b", 2)
    assert await patient == {"a": 1, "b": 2}
    assert asked == ["a", "b", "a", "b"]
    answers.take("a", 3)
    assert not answers._waiting
    assert await answers.ask({}, 1.0) == {}


class Pipeline:
    """An :class:`Observation` of two processes that answer when they are told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.coordinator = SimpleNamespace(recorder=None, statistics=lambda: {"completed": 1.0})
        stages = [StageConfig(name=name, factory="m:f", process=name) for name in "ab"]
        self.units: Any = {
            name: SimpleNamespace(
                life=SimpleNamespace(restarts=0, state=UnitState.READY, serves=True, reason=""),
                role=Role.SERVING,
                processes=[SimpleNamespace(pid=1, spec=SimpleNamespace(name=name, endpoint=f"ipc://{name}"))],
                spec=SimpleNamespace(
                    stage_names=[name], processes=[SimpleNamespace(name=name, endpoint=f"ipc://{name}")]
                ),
            )
            for name in "ab"
        }
        self.observation = Observation(
            PipelineConfig(model_path="none", stages=stages),
            lambda endpoint: 0,
            self.units,
            self.coordinator,  # type: ignore[arg-type]
            SimpleNamespace(tell=lambda endpoint, message: self.sent.append((endpoint, message))),  # type: ignore[arg-type]
        )


async def test_concurrent_statistics_calls_share_an_answer() -> None:
    pipeline = Pipeline()
    hasty = asyncio.create_task(pipeline.observation.statistics(0.01))
    patient = asyncio.create_task(pipeline.observation.statistics(5.0))
    await asyncio.sleep(0)
    assert [message for _, message in pipeline.sent] == [StatisticsRequest(name) for name in "abab"]
    pipeline.observation.handle(StageStatistics("a", {"a": {"queued": 1.0}}))
    assert "a" not in (await hasty)["b"]
    pipeline.observation.handle(StageStatistics("b", {"b": {"queued": 2.0}}))
    counters = await patient
    assert counters["a"] == {"process": {"restarts": 0.0}, "a": {"queued": 1.0}}
    assert counters["b"] == {"process": {"restarts": 0.0}, "b": {"queued": 2.0}}
    assert counters["coordinator"] == {"requests": {"completed": 1.0}}


async def test_without_the_service_a_profile_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.services.load_plugins", lambda: PluginRegistry([]))
    with pytest.raises(PluginError, match=r"profiles need the service .*: pip install omni-commands"):
        await Pipeline().observation.profiling.start()


async def test_a_client_whose_profile_cannot_begin_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.services.load_plugins", lambda: PluginRegistry([]))
    pipeline = Pipeline()
    assert pipeline.observation.handle(ProfileRequest("ipc://client", 0.1, "trace.json"))
    await asyncio.sleep(0)
    [(endpoint, done)] = pipeline.sent
    pipeline.observation.close()
    assert endpoint == "ipc://client"
    assert "pip install omni-commands" in done.problem


async def test_health() -> None:
    health = Pipeline().observation.health()
    assert health["a"] == {"stages": ["a"], "state": "ready", "restarts": 0, "reason": "", "pids": [1]}


async def test_a_unit_that_gets_no_new_requests_is_shown_as_draining_while_it_serves() -> None:
    pipeline = Pipeline()
    unit = pipeline.units["a"]
    unit.role = Role.DRAINING
    assert pipeline.observation.health()["a"]["state"] == "draining"
    unit.life.state, unit.life.serves = UnitState.RESTARTING, False
    assert pipeline.observation.health()["a"]["state"] == "restarting"


async def test_a_process_that_answers_has_read_what_came_before() -> None:
    pipeline = Pipeline()
    processes = [unit.spec.processes[0] for unit in pipeline.units.values()]
    asking = asyncio.create_task(pipeline.observation.counters(processes, 0.05))
    await asyncio.sleep(0)
    assert pipeline.sent == [("ipc://a", StatisticsRequest("a")), ("ipc://b", StatisticsRequest("b"))]
    pipeline.observation.handle(StageStatistics("b", {"s": {"queued": 1.0}}))
    assert await asking == {"b": {"s": {"queued": 1.0}}}


async def test_caches_are_flushed_in_every_process() -> None:
    pipeline = Pipeline()
    flushing = asyncio.create_task(pipeline.observation.flush_caches(5.0))
    await asyncio.sleep(0)
    assert pipeline.sent == [("ipc://a", FlushRequest()), ("ipc://b", FlushRequest())]
    assert pipeline.observation.handle(FlushReport("a", ["a"]))
    assert pipeline.observation.handle(FlushReport("b", []))
    assert await flushing == {"a": ["a"], "b": []}
