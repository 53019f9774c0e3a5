"""Profiles of a running pipeline, asked by several at once; processes are replaced by answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_cli.tracing.profiling import PipelineProfile
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, OmniError
from omni_core.protocol.messages import ProfileMessage, ProfileReport


class Pipeline:
    """The profile of two processes that answer when they are told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        processes = {name: SimpleNamespace(name=name, endpoint=f"ipc://{name}") for name in "ab"}
        units: Any = {
            name: SimpleNamespace(life=SimpleNamespace(serves=True), spec=SimpleNamespace(processes=[processes[name]]))
            for name in "ab"
        }
        stages = [StageConfig(name=name, factory="m:f", process=name) for name in "ab"]
        self.coordinator: Any = SimpleNamespace(recorder=None)
        control: Any = SimpleNamespace(tell=lambda endpoint, message: self.sent.append((endpoint, message)))
        config = PipelineConfig(model_path="none", stages=stages)
        self.profile = PipelineProfile(config, lambda endpoint: 0, units, self.coordinator, control)

    async def answer_profile(self, number: int = 2) -> None:
        await asyncio.sleep(0)
        messages, self.sent[:] = list(self.sent), []
        assert len(messages) == number
        for endpoint, message in messages:
            assert isinstance(message, ProfileMessage)
            events, clock = (b"", (5, 7)) if message.start else (b"[]", None)
            self.profile.take(ProfileReport(endpoint.removeprefix("ipc://"), events, clock=clock))


async def test_a_second_concurrent_profile_is_rejected(tmp_path: Path) -> None:
    pipeline = Pipeline()
    first = asyncio.create_task(pipeline.profile.start())
    await asyncio.sleep(0)
    with pytest.raises(OmniError, match="running already"):
        await pipeline.profile.start()
    await pipeline.answer_profile()
    await first
    with pytest.raises(OmniError, match="running already"):
        await pipeline.profile.start()

    stopping = asyncio.create_task(pipeline.profile.stop(tmp_path / "trace.json"))
    await asyncio.sleep(0)
    with pytest.raises(OmniError, match="no profile is running"):
        await pipeline.profile.stop(tmp_path / "other.json")
    with pytest.raises(OmniError, match="running already"):
        await pipeline.profile.start()
    await pipeline.answer_profile()
    summary = await stopping
    assert summary.missing == []
    assert summary.events == len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"])

    again = asyncio.create_task(pipeline.profile.start())
    await pipeline.answer_profile()
    await again


async def test_a_profile_that_does_not_begin_can_be_begun_again() -> None:
    pipeline = Pipeline()
    cancelled = asyncio.create_task(pipeline.profile.start())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    pipeline.sent.clear()
    again = asyncio.create_task(pipeline.profile.start())
    await pipeline.answer_profile()
    await again


async def test_a_stage_that_does_not_exist_cannot_be_profiled() -> None:
    with pytest.raises(ConfigError, match="torch: no stage is called 'c'"):
        await Pipeline().profile.start(["c"])
