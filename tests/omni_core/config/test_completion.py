"""What a pipeline's own functions complete in the parent: devices by ``placement_fn``, files by ``fetch_fn``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner

from omni_core.cli.main import omni
from omni_core.config.completion import DoesNotFitError, Machine, Placement, completed, placed
from omni_core.config.loading import dump_json, structure, unstructure
from omni_core.config.schema import PipelineConfig, StageConfig
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


def test_nothing_is_fetched_for_a_pipeline_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    FETCHED.clear()
    config = pipeline(fetch_fn=f"{__name__}:fetch")
    monkeypatch.setattr("omni_core.config.completion.detect", lambda: [8 * GIB])
    with pytest.raises(DoesNotFitError):
        completed(config)
    assert FETCHED == []
    monkeypatch.setattr("omni_core.config.completion.detect", lambda: [24 * GIB])
    done = completed(config)
    assert (done.model_path, FETCHED) == ("/fetched/owner/name", ["owner/name"])
    assert completed(done) == done
    assert FETCHED == ["owner/name"]


def test_the_commands_show_what_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pipeline.json"
    path.write_text(dump_json(pipeline()))

    def told(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(omni, [*arguments])
        return result.exit_code, result.output + str(result.exception or "")

    code, shown = told("plan", str(path), "--gpus", "2", "--gpu-memory", "24GiB")
    assert (code, "gpu 1" in shown, "only: weights 10.0 GiB" in shown) == (0, True, True)
    code, refused = told("plan", str(path), "--gpus", "1", "--gpu-memory", "8GiB", "--json")
    assert code == 1
    document, _ = json.JSONDecoder().raw_decode(refused)
    assert document == {"processes": [], "notes": {}, "problems": ["1 GPU of 10.0 GiB would do"]}
    monkeypatch.setattr("omni_core.cli.config.detect", lambda: [8 * GIB])
    assert (
        "left open, because it does not fit this machine: 1 GPU of 10.0 GiB would do"
        in told("config", "show", str(path))[1]
    )
    monkeypatch.setattr("omni_core.cli.config.detect", lambda: [24 * GIB])
    assert "only.gpu: 'auto' -> 0  (chosen for this machine)" in told("config", "show", str(path), "--provenance")[1]
