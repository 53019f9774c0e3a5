"""Sizes of pictures, and their pixels."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from omni_core.errors import InvalidRequestError
from omni_media.api import Limits, MediaSource, frames, images
from omni_qwen3.patches import PatchSettings, fitting_size, resized_frame


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
        frames(video, 2.0, Limits())
    with pytest.raises(InvalidRequestError, match=words):
        images(MediaSource("image", {"image": pixels[0]}, "messages[0].content[0]"), Limits())[0]


_TORCHVISION = """
import sys
import numpy as np
import oracle
import torch
oracle.load_torchvision()
from torchvision.transforms.v2 import functional
from torchvision.transforms import InterpolationMode
given, made = sys.argv[1:]
sized = {}
for name, frames in np.load(given).items():
    mode, *size = name.split()
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
    found = functional.resize(pixels, [*map(int, size)], interpolation=InterpolationMode[mode], antialias=True)
    sized[name] = found.permute(0, 2, 3, 1).numpy()
np.savez(made, **sized)
"""


def test_frames_have_the_pixels_of_torchvision(tmp_path: Path) -> None:
    if "OMNI_ORACLE_PACKAGES" not in os.environ:
        pytest.skip("needs torchvision in OMNI_ORACLE_PACKAGES; `nox` sets it")
    given, ours = dict[str, np.ndarray](), dict[str, np.ndarray]()
    draw = np.random.default_rng(0)
    for resample in (Image.Resampling.BICUBIC, Image.Resampling.BILINEAR):
        settings = PatchSettings(16, 2, 2, (0.5,) * 3, (0.5,) * 3, 1 / 255, 1, 2**30, resample)
        for height, width in ((48, 64), (97, 31), (333, 517), (720, 1280)):
            noise = draw.integers(0, 256, (height, width, 3), np.uint8)
            smooth = np.asarray(Image.fromarray(noise[:8, :8]).resize((width, height)))
            sized = np.stack([resized_frame(each, settings) for each in (noise, smooth)])
            name = f"{resample.name} {sized.shape[1]} {sized.shape[2]}"
            given[name], ours[name] = np.stack([noise, smooth]), sized
    np.savez(tmp_path / "given.npz", **given)  # type: ignore[arg-type]
    command = [sys.executable, "-c", _TORCHVISION, str(tmp_path / "given.npz"), str(tmp_path / "made.npz")]
    paths = os.pathsep.join([str(Path(oracle.__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True)
    theirs = np.load(tmp_path / "made.npz")
    assert len(ours) == 8
    for name, pixels in ours.items():
        np.testing.assert_array_equal(pixels, theirs[name], err_msg=name)
