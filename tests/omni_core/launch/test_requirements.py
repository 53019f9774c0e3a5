"""The processes that import torch before the first tensor arrives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.launch.prepare import prepare
from omni_core.launch.requirements import needs_torch
from omni_core.plugins import load_plugins


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("omni_torch.vocoder.scheduler:VocoderScheduler", True),
        ("omni_torch.engine.scheduler:EngineScheduler", True),
        ("omni_core.scheduling.simple:SimpleScheduler", False),
        ("json:loads", False),
        ("not_installed_anywhere.stages:f", False),
    ],
)
def test_distributions_that_require_torch_are_known(reference: str, expected: bool) -> None:
    assert needs_torch(reference) is expected


def test_processes_that_torch_stages_send_to_expect_tensors(tmp_path: Path) -> None:
    def stage(name: str, package: str, following: str | None, **fields: Any) -> StageConfig:
        return StageConfig(
            name=name, factory=package, process=name, next=following, terminal=following is None, **fields
        )

    config = PipelineConfig(
        model_path="none",
        stages=[
            stage("plain", "json:loads", "model"),
            stage("model", "omni_torch.api:Network", "middle", stream_to=["late"]),
            stage("middle", "json:loads", "late"),
            stage("late", "json:loads", None),
        ],
    )
    units = prepare(config, load_plugins()).units
    expects = {unit.name: unit.processes[0].expects_tensors for unit in units}
    assert expects == {"plain": False, "model": False, "middle": True, "late": True}
