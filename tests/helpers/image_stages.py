"""A pipeline of one function for the tests of image endpoints: it draws what its prompt and parameters say, with previews on the way."""

from __future__ import annotations

import io
import time
from collections.abc import Generator
from typing import Any

import numpy as np
from PIL import Image

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import InvalidRequestError
from omni_core.interface import SEED, Interface, Parameter
from omni_core.protocol.messages import StagePayload
from omni_core.protocol.outputs import ImageChunk, ImageResult

INTERFACE = Interface(
    roles={"image": "draw"},
    inputs=["text", "image"],
    outputs=["image"],
    params=[
        Parameter("width", "integer", "pixels", 32, 16, 64, multiple_of=16),
        Parameter("height", "integer", "pixels", 32, 16, 64, multiple_of=16),
        Parameter("images", "integer", "images of a prompt", 1, 1, 4, aliases=["n"]),
        Parameter("partial_images", "integer", "previews", 0, 0, 3),
        Parameter("strength", "number", "how bright", 1.0, 0, 1),
        Parameter("pause", "number", "seconds before each preview, for tests", 0.0, 0, 100),
        Parameter(SEED, "integer", "seed", minimum=0, maximum=2**31),
    ],
)


def draw(payload: StagePayload) -> Generator[ImageChunk, None, ImageResult]:
    """Fill images with a shade: that of the seed, or of a given image. ``fail`` and ``refuse`` are commands of the tests."""
    params: dict[str, Any] = payload.request.params
    content = payload.request.inputs["messages"][-1]["content"]
    prompt = next(part["text"] for part in content if part["type"] == "text")
    given = [part["data"] for part in content if part["type"] == "image"]
    if prompt == "fail":
        raise RuntimeError("told to fail")
    if prompt == "refuse":
        raise InvalidRequestError("messages: refused")
    shade = params.get("seed", 7) % 200 * params.get("strength", 1.0)
    if given:
        shade = float(np.asarray(Image.open(io.BytesIO(given[0])).convert("L")).mean()) / 2
    pixels = np.full((params.get("images", 1), params.get("height", 32), params.get("width", 32), 3), shade, np.uint8)
    previews = params.get("partial_images", 0)
    for step in range(4):
        time.sleep(params.get("pause", 0.0))
        yield ImageChunk(step + 1, 4, pixels // 2 if step < previews else None)
    return ImageResult(pixels, seeds=[params.get("seed", 7)])


def drawing_pipeline() -> PipelineConfig:
    """Return the pipeline."""
    stage = StageConfig(name="draw", process="p", factory="image_stages:draw", terminal=True)
    return PipelineConfig(model_path="none", name="shades", stages=[stage], interface=INTERFACE)
