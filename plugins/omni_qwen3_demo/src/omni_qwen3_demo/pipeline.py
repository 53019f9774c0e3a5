"""The pipeline ``demo``: Qwen3-Omni's own, unchanged but for its name. Light: nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve

from omni_core.config.schema import PipelineConfig
from omni_qwen3.pipeline import qwen3_omni

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""The checkpoint: package data, in the released layout."""


def default_model() -> tuple[str, str]:
    """The checkpoint of ``omni run demo`` without ``--model``, and a notice that says what it is."""
    notice = (
        "The demo's model knows a closed set of questions, four colours and four spoken words; "
        "`omni run qwen3-omni --model ...` takes a real checkpoint."
    )
    return str(CHECKPOINT), notice


def demo(model_path: str, **options: Any) -> PipelineConfig:
    """Qwen3-Omni's pipeline. ``options``: :data:`omni_qwen3.interface.OPTIONS`."""
    return evolve(qwen3_omni(model_path, **options), name="demo")
