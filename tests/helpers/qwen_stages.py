"""The thinker's and the talker's stage outside a pipeline, on the engine."""

from __future__ import annotations

from typing import Any

from omni_core.stage.assembly import assemble
from omni_torch.engine.scheduler import EngineScheduler

ENGINE = "omni_torch.engine.scheduler:EngineScheduler"


def create_thinker(checkpoint: str, **arguments: Any) -> EngineScheduler:
    stage = assemble("omni_qwen3.thinker:ThinkerRunner.from_checkpoint", ENGINE, model_path=checkpoint, **arguments)
    assert isinstance(stage, EngineScheduler)
    return stage


def create_talker(checkpoint: str, **arguments: Any) -> EngineScheduler:
    stage = assemble(
        "omni_qwen3.talker:TalkerRunner.from_checkpoint",
        ENGINE,
        "omni_qwen3.talker_feedback:TalkerFeedback",
        model_path=checkpoint,
        **arguments,
    )
    assert isinstance(stage, EngineScheduler)
    return stage
