"""Shared parts of the end-to-end tests: shapes, the pipeline of a checkpoint, and requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_core.config.schema import PipelineConfig
from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest
from omni_core.references import load

THINKER_TOKENS = 24
TALKER_TOKENS = 48
SHAPES = ["a", "b", "c"]


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def pipeline(model_path: Path, name: str = "qwen3-omni", **options: Any) -> PipelineConfig:
    """The config that ``omni run NAME --model PATH`` would use."""
    config: PipelineConfig = load(load_plugins().get("omni_pipelines", name).target)(str(model_path), **options)
    return config


def request_of(case: dict[str, Any], **changes: Any) -> OmniRequest:
    """A greedy request for a case, asking for the codes too."""
    params = {
        "thinker": {"temperature": 0.0, "max_new_tokens": case["thinker_max_new_tokens"]},
        "talker": {"temperature": 0.0, "max_new_tokens": case["talker_max_new_tokens"]},
        "return_codes": True,
    }
    metadata = {"speaker": "Ethan", "use_audio_in_video": bool(case.get("use_audio_in_video"))}
    return OmniRequest(
        inputs={"messages": case["messages"]},
        params={**params, **changes.get("params", {})},
        modalities=changes.get("modalities"),
        metadata={**metadata, **changes.get("metadata", {})},
    )
