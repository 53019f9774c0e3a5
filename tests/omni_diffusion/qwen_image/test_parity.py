"""Equal to diffusers' own pipeline: latents within 1e-5, alone and beside others of other sizes, steps and guidance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImagePipeline
from stages_in_turn import Stages

from omni_core.errors import InvalidRequestError
from omni_torch.quantization import packed_linear

REQUESTS: list[dict[str, Any]] = [
    {"prompt": "a red circle left of a blue square", "width": 64, "height": 64, "steps": 4, "seed": 1},
    {"prompt": "a dog", "width": 64, "height": 64, "steps": 7, "seed": 2, "guidance_scale": 1.0},
    {"prompt": "rain over a small town at night, seen from above", "width": 96, "height": 32, "steps": 3, "seed": 3},
    {
        "prompt": "a cat",
        "width": 64,
        "height": 64,
        "steps": 5,
        "seed": 4,
        "guidance_scale": 7.5,
        "negative_prompt": "dark",
    },
    {"prompt": "two birds", "width": 96, "height": 32, "steps": 6, "seed": 5, "guidance_scale": 2.5},
    {"prompt": " a  green\tdoor\n", "width": 64, "height": 64, "steps": 2, "seed": 6},
    {"prompt": "", "width": 64, "height": 64, "steps": 2, "seed": 8},
    {"prompt": "an old lighthouse", "width": 48, "height": 80, "steps": 4, "seed": 7, "images": 2},
    {"prompt": "snow", "width": 64, "height": 64, "steps": 2, "seed": 2**32 - 1, "guidance_scale": 12.0},
]


def reference(checkpoint: Path, request: dict[str, Any]) -> torch.Tensor:
    """Return the packed latents of diffusers."""
    pipe = QwenImagePipeline.from_pretrained(checkpoint)
    pipe.set_progress_bar_config(disable=True)
    scale = request.get("guidance_scale", 4.0)
    return torch.as_tensor(
        pipe(
            prompt=request["prompt"],
            negative_prompt=request.get("negative_prompt", " ") if scale > 1 else None,
            true_cfg_scale=scale,
            width=request["width"],
            height=request["height"],
            num_inference_steps=request["steps"],
            num_images_per_prompt=request.get("images", 1),
            generator=torch.Generator().manual_seed(request["seed"]),
            output_type="latent",
        ).images
    )


def pixels_of(checkpoint: Path, latents: torch.Tensor, request: dict[str, Any]) -> Any:
    """Return diffusers' uint8 pixels of packed latents."""
    pipe = QwenImagePipeline.from_pretrained(checkpoint)
    unpacked = pipe._unpack_latents(latents, request["height"], request["width"], 8)
    mean, std = (
        torch.tensor(each).view(1, -1, 1, 1, 1) for each in (pipe.vae.config.latents_mean, pipe.vae.config.latents_std)
    )
    with torch.no_grad():
        images = pipe.vae.decode(unpacked * std + mean, return_dict=False)[0][:, :, 0]
    return (pipe.image_processor.postprocess(images, output_type="np") * 255).round().astype("uint8")


def test_latents_equal_those_of_diffusers_alone_and_together(checkpoint: Path) -> None:
    stages = Stages(checkpoint, max_batch_size=8)
    together = stages.run(*REQUESTS)
    assert stages.denoise.statistics()["stepped"] > 1.5 * stages.denoise.statistics()["steps"]
    for request, (latents, pixels) in zip(REQUESTS, together, strict=True):
        expected = reference(checkpoint, request)
        assert torch.allclose(latents, expected, rtol=1e-5, atol=1e-5), request
        [(alone, _)] = stages.run(request)
        assert torch.allclose(alone, expected, rtol=1e-5, atol=1e-5), request
        assert np.abs(pixels.astype(int) - pixels_of(checkpoint, expected, request).astype(int)).max() <= 1
        assert pixels.std() > 1, "an image of one colour shows nothing"


def test_packed_weights_compute_the_same(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the tiny shapes are too small to be packed otherwise."""
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 1)
    stages = Stages(small)
    if packed_linear.packed(torch.ones(8, 8)) is None:
        pytest.skip("this build of PyTorch has no such kernels")
    kinds = {type(each) for each in stages.denoise._model.network.modules()}  # type: ignore[attr-defined]
    assert packed_linear.PackedLinear in kinds
    assert torch.nn.Linear not in kinds
    [(latents, _)] = stages.run(REQUESTS[0])
    assert torch.allclose(latents, reference(small, REQUESTS[0]), rtol=1e-5, atol=1e-5)


def test_a_seed_gives_the_same_again_and_others_differ(small: Path) -> None:
    stages = Stages(small)
    [(first, _)], [(second, _)] = stages.run(REQUESTS[0]), stages.run(REQUESTS[0])
    assert torch.equal(first, second)
    [(other, _)] = stages.run({**REQUESTS[0], "seed": 99})
    assert not torch.allclose(first, other, atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_the_negative_prompt_counts_with_guidance_alone(small: Path, scale: float) -> None:
    stages, request = Stages(small), {**REQUESTS[0], "guidance_scale": scale}
    [(one, _)] = stages.run({**request, "negative_prompt": "a long list of things that are not wanted"})
    [(other, _)] = stages.run({**request, "negative_prompt": "dark"})
    assert torch.equal(one, other) == (scale <= 1)


def test_one_step_is_refused_where_the_schedule_is_stretched(small: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"params\.steps: must be 2 or more"):
        Stages(small).run({**REQUESTS[0], "steps": 1})
