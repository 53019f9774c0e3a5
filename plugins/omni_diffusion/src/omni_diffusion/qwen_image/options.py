"""The types of the pipeline's options, for type checkers; :data:`omni_diffusion.qwen_image.interface.OPTIONS` describes them."""

from __future__ import annotations

from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """Options of the pipeline."""

    processes: Literal["separate", "one"]
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    gpu: int | None
    max_batch_size: int
    max_running: int
    prompt_cache: str | int
    adapters: dict[str, str]
