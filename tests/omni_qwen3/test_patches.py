"""Sizes of pictures."""

from __future__ import annotations

import random

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from omni_core.errors import InvalidRequestError
from omni_qwen3.media import Limits, MediaSource
from omni_qwen3.media.image import load_image
from omni_qwen3.media.video import load_video
from omni_qwen3.patches import fitting_size


def test_sizes_are_those_of_the_reference() -> None:
    draw = random.Random(0)
    kinds = {"larger": 0, "smaller": 0, "fits": 0}
    for _ in range(5000):
        height, width = (round(10 ** draw.uniform(0.5, 3.7)) for _ in range(2))
        if max(height, width) > 200 * min(height, width):
            continue
        low = draw.choice([1024, 3136, 128 * 1024])
        high = draw.choice([16_384, 768 * 1024, 12_845_056]) + low
        size = fitting_size(height, width, 32, low, high)
        assert size == smart_resize(height, width, 32, low, high), (height, width, low, high)
        kinds["larger" if height * width > high else "smaller" if height * width < low else "fits"] += 1
    assert min(kinds.values()) > 200


@pytest.mark.parametrize(
    ("height", "width", "words"),
    [(2, 402, "402 x 2 pixels: one side is over 200 times"), (0, 8, "there is nothing to see")],
)
def test_sides_that_no_size_fits_are_named(height: int, width: int, words: str) -> None:
    pixels = np.zeros((1, height, width, 3), np.uint8)
    video = MediaSource("video", {"frames": pixels}, "messages[0].content[0]")
    with pytest.raises(InvalidRequestError, match=rf"messages\[0\]\.content\[0\].*{words}"):
        load_video(video, Limits(), fps=2.0, with_sound=False)
    with pytest.raises(InvalidRequestError, match=words):
        load_image(MediaSource("image", {"image": pixels[0]}, "messages[0].content[0]"), Limits())
