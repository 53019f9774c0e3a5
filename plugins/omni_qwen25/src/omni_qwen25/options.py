"""The types of the pipelines' options, for type checkers; :data:`omni_qwen25.interface.OPTIONS` describes them."""

from __future__ import annotations

from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """Options of both pipelines."""

    processes: Literal["separate", "one"]
    dtype: Literal["float32", "bfloat16", "float16"]
    gpu: int | None
    max_image_pixels: int
    max_audio_seconds: float
    max_video_seconds: float
    max_context: int
