"""The types of the pipeline's options, for type checkers; :data:`omni_qwen3_tts.interface.OPTIONS` describes them."""

from __future__ import annotations

from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """Options of the pipeline."""

    processes: Literal["separate", "one"]
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    gpu: int | str | None
    initial_chunk: int
    chunk: int
    max_characters: int
    max_reference_seconds: float
    voices_kept: int
    reference: str
    reference_text: str
    max_context: int
    aligner: str
