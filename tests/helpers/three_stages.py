"""Three stages in three processes, and what they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_core.config.schema import PipelineConfig, StageConfig


def stage(name: str, function: str, **fields: Any) -> StageConfig:
    fields.setdefault("process", name)
    return StageConfig(name=name, factory=f"pipeline_stages:{function}", **fields)


def pipeline(tmp_path: Path, *stages: StageConfig, **fields: Any) -> PipelineConfig:
    from omni_core.config.schema import EndpointsConfig

    return PipelineConfig(model_path="none", stages=list(stages), endpoints=EndpointsConfig(str(tmp_path)), **fields)


def three(tmp_path: Path) -> PipelineConfig:
    return pipeline(
        tmp_path,
        stage("start", "start", next="middle"),
        stage("middle", "middle", next="end"),
        stage("end", "end", terminal=True),
    )
