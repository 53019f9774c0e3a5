"""Makes the pipelines of the runtime tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig


def make_pipeline(folder: Path, *stages: StageConfig, **fields: Any) -> PipelineConfig:
    """Return a pipeline whose sockets live in ``folder``."""
    return PipelineConfig(model_path="none", stages=list(stages), endpoints=EndpointsConfig(str(folder)), **fields)
