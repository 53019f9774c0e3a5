"""The parts of a stage are resolved through the registry, the scheduler is chosen, and errors have a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import Component, SchedulerComponent
from omni_core.launch.prepare import prepare
from omni_core.plugins import PluginRecord, PluginRegistry, PluginStatus
from omni_core.protocol.specs import StageSpec


def scheduler(name: str, preference: int, requires: tuple[str, ...] = ()) -> SchedulerComponent:
    target = f"there.{name}:Scheduler"
    return SchedulerComponent(name, target, "", requires, runs_model_runners=True, preference=preference)


def installed(*schedulers: Component) -> PluginRegistry:
    components = {
        "omni_schedulers": list(schedulers),
        "omni_model_runners": [Component("talker", "there.talker:Runner.from_checkpoint", "")],
        "omni_feedback_strategies": [Component("codes", "there.talker:Codes", "")],
    }
    return PluginRegistry(
        [PluginRecord("some", "some", "1", "some.plugin", PluginStatus.LOADED, components=components)]
    )


# Their targets' modules exist, so that they count as working here.
FIRST = SchedulerComponent("first", "json:loads", "", runs_model_runners=True, preference=10)
SECOND = SchedulerComponent("second", "json:dumps", "", runs_model_runners=True)
ABSENT = SchedulerComponent("absent", "json:load", "", ("no_such_module",), runs_model_runners=True, preference=99)
PLAIN = SchedulerComponent("plain", "json:dump", "")


def spec(folder: Path, registry: PluginRegistry, **fields: Any) -> StageSpec:
    stage = StageConfig(name="talker", process="talker", terminal=True, **fields)
    prepared = prepare(PipelineConfig(model_path="none", stages=[stage]), registry)
    return prepared.units[0].stages[0]


def test_names_become_references(tmp_path: Path) -> None:
    made = spec(tmp_path, installed(FIRST, SECOND), model_runner="talker", feedback="codes", scheduler="second")
    assert made.factory is None
    assert (made.model_runner, made.feedback) == ("there.talker:Runner.from_checkpoint", "there.talker:Codes")
    assert made.scheduler == "json:dumps"
    assert made.injected["device"] == "cpu"


def test_unregistered_references_are_kept(tmp_path: Path) -> None:
    made = spec(tmp_path, installed(), model_runner="mine.runner:Runner", scheduler="mine.scheduler.Scheduler")
    assert (made.model_runner, made.feedback, made.scheduler) == (
        "mine.runner:Runner",
        None,
        "mine.scheduler:Scheduler",
    )


def test_the_device_is_the_stage_s_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.deploy.fitting.check", lambda *_: None)
    made = spec(tmp_path, installed(), factory="mine.stage:make", gpu=2)
    assert (made.gpu, made.injected["device"]) == (2, "cuda:2")


@pytest.mark.parametrize(
    ("registry", "chosen"), [((SECOND, FIRST), "json:loads"), ((SECOND, ABSENT, PLAIN), "json:dumps")], ids=str
)
def test_the_default_scheduler_is_the_preferred_one_that_works_here(
    registry: tuple[Component, ...], chosen: str, tmp_path: Path
) -> None:
    assert spec(tmp_path, installed(*registry), model_runner="talker").scheduler == chosen


@pytest.mark.parametrize("registry", [(), (PLAIN,), (PLAIN, Component("plainer", "json:dump", ""))], ids=str)
def test_without_any_scheduler_the_error_says_what_to_install(registry: tuple[Component, ...], tmp_path: Path) -> None:
    wanted = (
        r"stages\[talker\]\.scheduler: no scheduler that can drive 'talker' is installed; one comes with omni-torch"
    )
    with pytest.raises(PluginError, match=wanted):
        spec(tmp_path, installed(*registry), model_runner="talker")


def test_a_scheduler_that_cannot_work_here_says_why(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"is installed; .*; 'absent': module 'no_such_module' is not installed"):
        spec(tmp_path, installed(ABSENT), model_runner="talker")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_runner": "talke"}, r"stages\[talker\]\.model_runner: .*did you mean 'talker'"),
        ({"model_runner": "talker", "feedback": "code"}, r"stages\[talker\]\.feedback: .*did you mean 'codes'"),
        ({"model_runner": "talker", "scheduler": "frist"}, r"stages\[talker\]\.scheduler: .*did you mean 'first'"),
        (
            {"model_runner": "talker", "scheduler": "plain"},
            r"stages\[talker\]\.scheduler: 'plain' drives no model runner; those that do: first",
        ),
    ],
    ids=str,
)
def test_a_wrong_name_is_an_error_with_its_path(fields: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=message):
        spec(tmp_path, installed(FIRST, PLAIN), **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"stages\[talker\]: set `factory`, or `model_runner`"),
        ({"factory": "a:b", "model_runner": "talker"}, r"stages\[talker\]: set `factory` or `model_runner`, not both"),
        ({"factory": "a:b", "feedback": "codes"}, r"stages\[talker\]\.feedback: needs `model_runner`"),
        ({"factory": "a:b", "scheduler": "first"}, r"stages\[talker\]\.scheduler: needs `model_runner`"),
    ],
    ids=str,
)
def test_a_stage_has_a_factory_or_parts(fields: dict[str, str], message: str) -> None:
    stage = StageConfig(name="talker", process="talker", terminal=True, **fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        validate(PipelineConfig(model_path="none", stages=[stage]))
