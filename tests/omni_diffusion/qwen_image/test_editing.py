"""Images edited by instruction: equal to diffusers' editing pipeline, and inputs that do not fit the checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from stages_in_turn import Stages

import omni_diffusion.qwen_image.encoder
from omni_core.errors import InvalidRequestError

HELPERS = Path(__file__).parents[2] / "helpers"
REQUEST: dict[str, Any] = {
    "prompt": "make the circle green and leave everything else as it is, please",
    "guidance_scale": 3.0,
    "width": 64,
    "height": 48,
    "steps": 3,
    "seed": 5,
}


def picture() -> Any:
    rows, columns = np.mgrid[:60, :90]
    image = np.zeros((60, 90, 3), np.uint8)
    image[..., 0], image[..., 1], image[..., 2] = rows * 4, columns * 2, (rows + columns) % 256
    return image


def test_an_edited_image_equals_diffusers(editing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get("OMNI_ORACLE_PACKAGES"):
        pytest.skip("the reference's processor needs torchvision: OMNI_ORACLE_PACKAGES names no folder with it")
    Image.fromarray(picture()).save(tmp_path / "in.png")
    out = tmp_path / "latents.pt"
    command = [sys.executable, str(HELPERS / "reference_of_edits.py"), str(editing), str(tmp_path / "in.png")]
    monkeypatch.setattr(omni_diffusion.qwen_image.encoder, "EDITED_AREA", 192 * 192)
    done = subprocess.run(
        [*command, json.dumps(REQUEST), str(192 * 192), str(out)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [(latents, pixels)] = Stages(editing).run({**REQUEST, "image": picture()})
    assert torch.allclose(latents, torch.load(out), rtol=1e-5, atol=1e-5)
    assert pixels.shape == (1, 48, 64, 3)


def test_the_size_of_an_edited_image_is_about_a_megapixel() -> None:
    for size in ((90, 60), (4000, 300), (7, 7)):
        width, height = omni_diffusion.qwen_image.encoder.edited_size(*size)
        assert (width % 32, height % 32) == (0, 0)
        assert abs(width * height / 1024**2 - 1) < 0.1


def test_an_image_belongs_to_an_editing_checkpoint(editing: Path, small: Path) -> None:
    with pytest.raises(InvalidRequestError, match="an image to edit is missing"):
        Stages(editing).run(REQUEST)
    with pytest.raises(InvalidRequestError, match="edits no images"):
        Stages(small).run({**REQUEST, "image": picture()})
