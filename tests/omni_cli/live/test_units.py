"""The devices of a unit that joins: beside the places that all others have now, those that drain included."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from omni_cli.live.operations import _guarded
from omni_cli.live.units import Units
from omni_core.config.placement import Replica, plan
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError

GIB = 2**30


def pipeline(gpu: int, memory: str) -> PipelineConfig:
    stage = StageConfig(name="a", factory="m:f", process="a", terminal=True, gpu=gpu, gpu_memory=memory)
    return PipelineConfig(model_path="m", stages=[stage])


def joins(monkeypatch: pytest.MonkeyPatch, config: PipelineConfig, *there: PipelineConfig) -> None:
    """Let the unit ``a.1`` of ``config`` join where units of other configs are."""
    monkeypatch.setattr("omni_cli.live.units.gpus_of", lambda config: [8 * GIB, 8 * GIB])
    running: Any = SimpleNamespace(units={}, prepare=lambda config, replicas: None, config=config)
    planned = [evolve(process, unit=f"a.{9 + number}") for number, each in enumerate(there) for process in plan(each)]
    Units(running)._prepared(config, {"a": [Replica(0, 1, "a.1")]}, "a.1", planned)


def test_the_old_unit_is_where_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    old = pipeline(0, "6GiB")
    joins(monkeypatch, pipeline(1, "6GiB"), old)
    joins(monkeypatch, pipeline(0, "2GiB"), old)
    with pytest.raises(ConfigError, match="GPU 0"):
        joins(monkeypatch, pipeline(0, "6GiB"), old)


def test_units_that_drain_still_have_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    joins(monkeypatch, pipeline(0, "3GiB"), pipeline(0, "3GiB"))
    with pytest.raises(ConfigError, match="GPU 0"):
        joins(monkeypatch, pipeline(0, "3GiB"), pipeline(0, "3GiB"), pipeline(0, "3GiB"))


def test_the_units_of_the_start_are_known_by_their_names_after_a_scale() -> None:
    two = evolve(pipeline(0, "1GiB"), stages=[evolve(pipeline(0, "1GiB").stages[0], replicas=2, gpu=[0, 1])])
    running: Any = SimpleNamespace(units={}, config=two)
    units = Units(running)
    running.config = pipeline(0, "1GiB")  # scaled to one, whose unit would be called `a` if it began now
    assert sorted(units._planned) == ["a.0", "a.1"]


def test_a_step_that_cannot_be_told_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def closed(line: str) -> None:
        raise BrokenPipeError(line)

    with caplog.at_level(logging.ERROR):
        _guarded(closed)("a.1: starting")
    assert "a.1: starting" in caplog.text
