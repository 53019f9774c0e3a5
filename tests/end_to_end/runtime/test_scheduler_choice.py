"""``scheduler:`` of a stage: a registered name reaches the factory as a reference, and everything else is said clearly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, PluginError
from omni_core.launch.prepare import prepare
from omni_core.machines.addresses import Place, Places
from omni_core.plugins import load_plugins
from omni_core.protocol.specs import StageSpec
from omni_core.stage.assembly import build_scheduler

CHOSEN: list[str] = []


def open_factory(scheduler: str = "its own") -> Any:
    CHOSEN.append(scheduler)
    return lambda payload: payload


def closed_factory(gain: float = 1.0) -> Any:
    return lambda payload: payload


def spec(folder: Path, **fields: Any) -> StageSpec:
    stage = StageConfig(name="thinker", process="thinker", terminal=True, **fields)
    prepared = prepare(PipelineConfig(model_path="none", stages=[stage]), load_plugins(), Places(Place(str(folder))))
    return prepared.units[0].stages[0]


def test_a_registered_name_becomes_a_reference(tmp_path: Path) -> None:
    made = spec(tmp_path, factory="test_scheduler_choice:open_factory", scheduler="engine")
    assert made.injected["scheduler"] == "omni_engine.scheduler:EngineScheduler"


def test_unset_leaves_the_choice_to_the_factory(tmp_path: Path) -> None:
    made = spec(tmp_path, factory="test_scheduler_choice:open_factory")
    assert "scheduler" not in made.injected


def test_an_unknown_name_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"stages\[thinker\]\.scheduler: .*'enginee'"):
        spec(tmp_path, factory="test_scheduler_choice:open_factory", scheduler="enginee")


def test_the_factory_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import test_scheduler_choice as here  # the module as the factory's reference names it

    factory = "test_scheduler_choice:open_factory"
    build_scheduler(StageSpec(name="thinker", factory=factory, injected={"scheduler": "a.b:C"}))
    assert here.CHOSEN == ["a.b:C"]


def test_a_factory_that_brings_its_own_refuses_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(ConfigError, match=r"stages\[thinker\]\.scheduler: .*brings its own"):
        build_scheduler(
            StageSpec(name="thinker", factory="test_scheduler_choice:closed_factory", injected={"scheduler": "a.b:C"})
        )
