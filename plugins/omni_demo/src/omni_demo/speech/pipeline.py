"""The pipeline ``demo``: Qwen3-Omni's, with another name. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from attrs import evolve

from omni_core.api import PipelineConfig
from omni_qwen3.options import Options
from omni_qwen3.pipeline import qwen3_omni

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""The checkpoint's folder: package data, in the released layout."""

QUESTION = "What did I say?"
"""The question about a recording that the model was trained on."""


def default_model() -> tuple[str, str]:
    """Return the checkpoint of ``omni run demo`` without ``--model``, and a notice that describes it."""
    notice = (
        "The demo model answers a fixed set of questions and recognises four colours and four spoken words; "
        "`omni run qwen3-omni --model ...` takes a real checkpoint."
    )
    return str(CHECKPOINT), notice


def demo(model_path: str, **options: Unpack[Options]) -> PipelineConfig:
    """Return Qwen3-Omni's pipeline, in float32. ``options``: :data:`omni_qwen3.interface.OPTIONS`."""
    options.setdefault("dtype", "float32")  # stored in bfloat16 to be small, trained in float32
    made = qwen3_omni(model_path, **options)
    assert made.interface is not None
    prompts = {**made.interface.prompts, "transcription": QUESTION}
    prompts.pop("translation")  # it has learnt none
    return evolve(made, name="demo", interface=evolve(made.interface, prompts=prompts))
