"""Sources that import torch: the fork server imports it once for all stages of such modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.launch.prepare import prepare
from omni_core.plugins import load_plugins
from omni_torch.processes.forks.sources import imports_torch, preload_of


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
    (tmp_path / "stages_with_torch.py").write_text("import torch\nf = torch")
    monkeypatch.syspath_prepend(str(tmp_path))
    stages = [
        StageConfig(name="one", factory="stages_with_torch:f", process="one", next="two", preload=["json"]),
        StageConfig(name="two", factory="json:loads", process="two", next="three"),
        StageConfig(name="three", factory="omni_torch.api:f", process="three", terminal=True),
    ]
    units = prepare(PipelineConfig(model_path="none", stages=stages), load_plugins()).units
    found = {unit.name: preload_of(unit.processes[0]) for unit in units}
    assert found == {"one": ["torch", "json"], "two": [], "three": ["torch"]}
