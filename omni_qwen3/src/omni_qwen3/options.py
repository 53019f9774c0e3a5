"""The types of the pipelines' options, for type checkers; :data:`omni_qwen3.interface.OPTIONS` describes them."""

from __future__ import annotations

from typing import Literal, TypedDict


class TextOptions(TypedDict, total=False):
    """Options of both pipelines."""

    processes: Literal["separate", "one"]
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    gpu: int | str | None
    max_image_pixels: int
    max_audio_seconds: float
    max_video_seconds: float
    max_request_pixels: int
    max_request_samples: int
    max_request_frame_pixels: int
    max_context: int


class Options(TextOptions, total=False):
    """Options of the pipeline with speech."""

    initial_chunk: int
    chunk: int
    aligner: str
