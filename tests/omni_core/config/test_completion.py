"""Check what a pipeline's own functions complete in the parent: devices by ``placement_fn``, files by ``fetch_fn``."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from omni_cli.deploy.fitting import placed
from omni_cli.deploy.override_layers import Layer, apply
from omni_core.config.completion import DoesNotFitError, Machine, Placement, completed
from omni_core.config.loading import structure, unstructure
from omni_core.config.overrides import Override
from omni_core.config.schema import LauncherConfig, PipelineConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError

GIB = 2**30
FETCHED: list[str] = []


def choose(config: PipelineConfig, machine: Machine) -> Placement:
    """The only stage goes to the last GPU, and needs 10 GiB."""
    gpus = machine.gpus or []
    if gpus and gpus[-1] < 10 * GIB:
        raise DoesNotFitError("1 GPU of 10.0 GiB would do")
    stage = evolve(config.stages[0], gpu=len(gpus) - 1 if gpus else None, gpu_memory="10GiB" if gpus else None)
    return Placement(evolve(config, stages=[stage]), {"only": "weights 10.0 GiB"})


def choose_wrongly(config: PipelineConfig, machine: Machine) -> Placement:
    return Placement(evolve(config, stages=[evolve(config.stages[0], gpu=-1)]))


def fetch(model: str) -> str:
    FETCHED.append(model)
    return f"/fetched/{model}"


def pipeline(**fields: Any) -> PipelineConfig:
    stage = StageConfig(name="only", factory="m:f", process="p", terminal=True, gpu="auto")
    return PipelineConfig(model_path="owner/name", stages=[stage], placement_fn=f"{__name__}:choose", **fields)


def test_a_placement_is_made_once_and_for_the_machine_that_is_given() -> None:
    placement = placed(pipeline(), Machine([8 * GIB, 24 * GIB]))
    assert placement.config.stages[0].gpu == 1
    assert placement.config.placement_fn is None
    assert placed(placement.config, Machine([])) == Placement(placement.config)
    assert structure(unstructure(pipeline())) == pipeline()


def test_an_open_device_needs_someone_who_chooses() -> None:
    with pytest.raises(ConfigError, match=r"stages\[only\]\.gpu: this pipeline has no `placement_fn`"):
        validate(evolve(pipeline(), placement_fn=None))
    with pytest.raises(ConfigError, match=r"stages\[only\]\.gpu: must be a GPU number, a list of them, auto"):
        structure({**unstructure(pipeline()), "stages": [{**unstructure(pipeline())["stages"][0], "gpu": "automatic"}]})


def test_a_choice_that_is_invalid_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"stages\[only\]\.gpu: must be a device number"):
        placed(evolve(pipeline(), placement_fn=f"{__name__}:choose_wrongly"), Machine([24 * GIB]))


def choose_carelessly(config: PipelineConfig, machine: Machine) -> Placement:
    raise TypeError("a text times a number")


def test_a_function_that_fails_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="choose_carelessly failed: TypeError: a text times a number"):
        placed(evolve(pipeline(), placement_fn=f"{__name__}:choose_carelessly"), Machine([24 * GIB]))


def test_nothing_is_fetched_for_a_pipeline_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    FETCHED.clear()
    config = pipeline(fetch_fn=f"{__name__}:fetch")
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [8 * GIB])
    with pytest.raises(DoesNotFitError):
        completed(config)
    assert FETCHED == []
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [24 * GIB])
    done = completed(config)
    assert (done.model_path, FETCHED) == ("/fetched/owner/name", ["owner/name"])
    assert completed(done) == done
    assert FETCHED == ["owner/name"]


def test_the_gpus_of_this_machine_do_not_count_for_a_launcher_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [])
    wanted = evolve(pipeline(), stages=[evolve(pipeline().stages[0], gpu=3)], placement_fn=None)
    with pytest.raises(ConfigError, match="GPU 3 is wanted, this host has none"):
        completed(wanted)
    elsewhere = evolve(wanted, launcher=LauncherConfig("mine"))
    assert completed(elsewhere) == elsewhere


def test_what_does_not_fit_here_has_the_place_where_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [8 * GIB])
    plain = evolve(pipeline(), placement_fn=None)
    name = plain.stages[0].name
    resolved = apply(plain, Layer("file", [Override((name, "gpu"), 3, "d.yaml:4")]))
    with pytest.raises(ConfigError, match=rf"^d\.yaml:4: stages\[{name}\]\.gpu: GPU 3 is wanted"):
        completed(resolved.config, resolved.located)
