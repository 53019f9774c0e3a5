"""The processes that import torch before the first tensor arrives, and those that share its import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.launch.prepare import prepare
from omni_core.launch.requirements import imports_torch, needs_torch
from omni_core.plugins import load_plugins


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("omni_torch.vocoder:VocoderScheduler", True),
        ("omni_engine.scheduler:EngineScheduler", True),
        ("omni_core.scheduling.simple:SimpleScheduler", False),
        ("json:loads", False),
        ("not_installed_anywhere.stages:f", False),
    ],
)
def test_distributions_that_require_torch_are_known(reference: str, expected: bool) -> None:
    assert needs_torch(reference) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import json\nimport torch\n", True),
        ("from torch.nn import Linear", True),
        ("import torch.distributed as dist, json", True),
        ("import torchaudio", False),
        ("from .torch import f", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n", False),
        ("def f():\n    import torch\n", False),
        ("import torch\ndef", False),
    ],
)
@pytest.mark.parametrize("module", ["stages_of_a_user", "package_of_a_user.stages", "package_of_a_user.stages.deep"])
def test_what_a_module_imports_is_read_in_its_source(
    module: str, source: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / module.replace(".", "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.relative_to(tmp_path).parents[:-1]:
        (tmp_path / parent / "__init__.py").write_text("raise AssertionError")
    path.with_suffix(".py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert imports_torch(f"{module}:f") is expected


@pytest.mark.parametrize("reference", ["not_installed_anywhere:f", "sys:exit", "json.nothing:f", "__main__:f"])
def test_what_has_no_source_of_that_kind_imports_no_torch(reference: str) -> None:
    assert not imports_torch(reference)


def test_a_plain_module_that_imports_torch_shares_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stages_with_torch.py").write_text("import torch")
    monkeypatch.syspath_prepend(str(tmp_path))
    stages = [
        StageConfig(name="one", factory="stages_with_torch:f", process="one", next="other"),
        StageConfig(name="other", factory="json:f", process="other", terminal=True),
    ]
    units = prepare(PipelineConfig(model_path="none", stages=stages), load_plugins()).units
    assert {unit.name: unit.processes[0].preload for unit in units} == {"one": ["torch"], "other": []}


def test_processes_that_torch_stages_send_to_expect_tensors(tmp_path: Path) -> None:
    def stage(name: str, package: str, following: str | None, **fields: Any) -> StageConfig:
        return StageConfig(
            name=name, factory=f"{package}:f", process=name, next=following, terminal=following is None, **fields
        )

    config = PipelineConfig(
        model_path="none",
        stages=[
            stage("plain", "json", "model"),
            stage("model", "omni_torch", "middle", stream_to=["late"]),
            stage("middle", "json", "late"),
            stage("late", "json", None),
        ],
    )
    units = prepare(config, load_plugins()).units
    expects = {unit.name: unit.processes[0].expects_tensors for unit in units}
    assert expects == {"plain": False, "model": False, "middle": True, "late": True}
