"""``omni plan``: the processes, devices and budgets of a pipeline, for this machine or another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner

from omni_cli.deploy.writing import dump_json
from omni_core.cli.main import omni
from omni_core.config.completion import DoesNotFitError, Machine, Placement
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig

GIB = 2**30


def line(*stages: dict[str, Any], **fields: Any) -> PipelineConfig:
    """Stages a, b, c, ... each to the next, each in a process of its own."""
    names = "abcdefgh"[: len(stages)]
    configs = [
        StageConfig(
            name=name,
            factory="m:f",
            process=name,
            next=names[number + 1 : number + 2] or None,
            terminal=number + 1 == len(stages),
            **stage,
        )
        for number, (name, stage) in enumerate(zip(names, stages, strict=True))
    ]
    return PipelineConfig(model_path="m", stages=configs, **fields)


def choose(config: PipelineConfig, machine: Machine) -> Placement:
    """The only stage goes to the last GPU, and needs 10 GiB."""
    gpus = machine.gpus or []
    if gpus and gpus[-1] < 10 * GIB:
        raise DoesNotFitError("1 GPU of 10.0 GiB would do")
    stage = evolve(config.stages[0], gpu=len(gpus) - 1 if gpus else None, gpu_memory="10GiB" if gpus else None)
    return Placement(evolve(config, stages=[stage]), {"only": "weights 10.0 GiB"})


def pipeline(**fields: Any) -> PipelineConfig:
    stage = StageConfig(name="only", factory="m:f", process="p", terminal=True, gpu="auto")
    return PipelineConfig(model_path="owner/name", stages=[stage], placement_fn=f"{__name__}:choose", **fields)


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(dump_json(line({}, {"gpu": 0, "gpu_memory": "6GiB"}, {"gpu": 0, "gpu_memory": "3GiB"})))
    fits = CliRunner().invoke(omni, ["plan", str(path), "--gpus", "1", "--gpu-memory", "10GiB"])
    assert fits.exit_code == 0, fits.output
    assert "gpu 0: 9.0 GiB of 10.0 GiB given to 2 stages" in fits.output
    full = CliRunner().invoke(omni, ["plan", str(path), "--gpus", "1", "--gpu-memory", "8GiB", "--json"])
    assert full.exit_code == 1
    document, _ = json.JSONDecoder().raw_decode(full.stdout)
    assert [each["gpu"] for each in document["processes"]] == [None, 0, 0]
    assert document["processes"][1]["stages"] == [{"name": "b", "gpu": 0, "gpu_memory": "6.0 GiB"}]
    assert "stages[b].gpu_memory" in document["problems"][0]
    wrong = CliRunner().invoke(omni, ["plan", str(path), "--gpu-memory", "8GiB"])
    assert wrong.exit_code == 2


def test_gpus_of_another_host_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    fields = {"hosts": {"far": "tcp://10.0.0.2:7555"}, "endpoints": EndpointsConfig(None, "10.0.0.1", "k")}
    mine, theirs = {"gpu": 0, "gpu_memory": "6GiB"}, {"gpu": 3, "gpu_memory": "60GiB", "host": "far"}
    path.write_text(dump_json(line({}, mine, theirs, **fields)))
    shown = CliRunner().invoke(omni, ["plan", str(path), "--gpus", "1", "--gpu-memory", "8GiB"])
    assert shown.exit_code == 0, shown.output
    assert "gpu 3 on far" in shown.output
    assert "gpu 0: 6.0 GiB of 8.0 GiB given to 1 stages" in shown.output


def test_the_commands_show_what_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pipeline.json"
    path.write_text(dump_json(pipeline()))

    def told(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(omni, [*arguments, "--set", f"placement_fn={__name__}:choose"])
        return result.exit_code, result.output + str(result.exception or "")

    code, shown = told("plan", str(path), "--gpus", "2", "--gpu-memory", "24GiB")
    assert (code, "gpu 1" in shown, "only: weights 10.0 GiB" in shown) == (0, True, True)
    code, refused = told("plan", str(path), "--gpus", "1", "--gpu-memory", "8GiB", "--json")
    assert code == 1
    document, _ = json.JSONDecoder().raw_decode(refused)
    assert document == {"processes": [], "notes": {}, "problems": ["1 GPU of 10.0 GiB would do"]}
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [8 * GIB])
    assert (
        "left open, because it does not fit this machine: 1 GPU of 10.0 GiB would do"
        in told("config", "show", str(path))[1]
    )
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [24 * GIB])
    assert '"gpu": 0' in told("config", "show", str(path))[1]


def test_further_questions_are_those_of_other_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    help_text = CliRunner().invoke(omni, ["plan", "--help"]).output
    assert "Further questions" in help_text
    assert "--optimize" in help_text
    monkeypatch.setattr("omni_cli.plan.questions", dict)
    said = CliRunner().invoke(omni, ["plan", "demo", "--optimize", "--slo", "ttfa=1"])
    assert said.exit_code == 2
    assert "--optimize is not installed; try: pip install omni-planner" in said.output
