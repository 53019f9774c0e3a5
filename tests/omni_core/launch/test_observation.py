"""Statistics and profiles of a running pipeline, asked by several at once; processes are replaced by answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, OmniError
from omni_core.launch.observation import Answers, Observation
from omni_core.processes.unit import UnitState
from omni_core.protocol.messages import ProfileMessage, ProfileReport, StageStatistics, StatisticsRequest


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

    def __init__(self, folder: Path) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.coordinator = SimpleNamespace(recorder=None, statistics=lambda: {"completed": 1.0})
        stages = [StageConfig(name=name, factory="m:f", process=name) for name in "ab"]
        units: Any = {
            name: SimpleNamespace(
                life=SimpleNamespace(restarts=0, state=UnitState.READY, serves=True, reason=""),
                processes=[SimpleNamespace(pid=1, spec=SimpleNamespace(name=name, endpoint=f"ipc://{name}"))],
                spec=SimpleNamespace(
                    stage_names=[name], processes=[SimpleNamespace(name=name, endpoint=f"ipc://{name}")]
                ),
            )
            for name in "ab"
        }
        self.observation = Observation(
            PipelineConfig(model_path="none", stages=stages),
            folder,
            units,
            self.coordinator,  # type: ignore[arg-type]
            SimpleNamespace(tell=lambda endpoint, message: self.sent.append((endpoint, message))),  # type: ignore[arg-type]
        )

    async def answer_profile(self, number: int = 2) -> None:
        await asyncio.sleep(0)
        messages, self.sent[:] = list(self.sent), []
        assert len(messages) == number
        for endpoint, message in messages:
            assert isinstance(message, ProfileMessage)
            if message.path:
                Path(message.path).write_text("[]")
            self.observation.handle(ProfileReport(endpoint.removeprefix("ipc://"), message.path))


async def test_concurrent_statistics_calls_share_an_answer(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
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


async def test_a_second_concurrent_profile_is_rejected(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    first = asyncio.create_task(pipeline.observation.start_profile())
    await asyncio.sleep(0)
    with pytest.raises(OmniError, match="running already"):
        await pipeline.observation.start_profile()
    await pipeline.answer_profile()
    await first
    with pytest.raises(OmniError, match="running already"):
        await pipeline.observation.start_profile()

    stopping = asyncio.create_task(pipeline.observation.stop_profile(tmp_path / "trace.json"))
    await asyncio.sleep(0)
    with pytest.raises(OmniError, match="no profile is running"):
        await pipeline.observation.stop_profile(tmp_path / "other.json")
    with pytest.raises(OmniError, match="running already"):
        await pipeline.observation.start_profile()
    await pipeline.answer_profile()
    summary = await stopping
    assert summary.missing == []
    assert summary.events == len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"])

    again = asyncio.create_task(pipeline.observation.start_profile())
    await pipeline.answer_profile()
    await again


async def test_a_profile_that_does_not_begin_can_be_begun_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    cancelled = asyncio.create_task(pipeline.observation.start_profile())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    pipeline.sent.clear()
    again = asyncio.create_task(pipeline.observation.start_profile())
    await pipeline.answer_profile()
    await again


async def test_a_stage_that_does_not_exist_cannot_be_profiled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="torch: no stage is called 'c'"):
        await Pipeline(tmp_path).observation.start_profile(["c"])


async def test_health(tmp_path: Path) -> None:
    health = Pipeline(tmp_path).observation.health()
    assert health["a"] == {"stages": ["a"], "state": "ready", "restarts": 0, "reason": "", "pids": [1]}
