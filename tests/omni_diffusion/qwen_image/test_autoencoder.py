"""The autoencoder over one frame is that of diffusers over a video of one frame."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLQwenImage

from omni_diffusion.qwen_image.autoencoder import Autoencoder
from omni_diffusion.qwen_image.checkpoint import Checkpoint


def normal(reference: AutoencoderKLQwenImage) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = (
        torch.tensor(each).view(1, -1, 1, 1, 1)
        for each in (reference.config.latents_mean, reference.config.latents_std)
    )
    return mean, std


@torch.inference_mode()
def test_decoding_is_that_of_diffusers(checkpoint: Path) -> None:
    reference = AutoencoderKLQwenImage.from_pretrained(checkpoint / "vae").eval()
    latents = torch.randn(2, reference.config.z_dim, 10, 6, generator=torch.Generator().manual_seed(1))
    mean, std = normal(reference)
    expected = reference.decode(latents[:, :, None] * std + mean, return_dict=False)[0][:, :, 0]
    found = Autoencoder(Checkpoint.open(str(checkpoint)), "cpu", torch.float32, "decoder").decode(latents)
    assert expected.std() > 0.1
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("size", [(64, 64), (32, 96)])
@torch.inference_mode()
def test_encoding_is_that_of_diffusers(editing: Path, size: tuple[int, int]) -> None:
    reference = AutoencoderKLQwenImage.from_pretrained(editing / "vae").eval()
    images = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    mean, std = normal(reference)
    expected = ((reference.encode(images[:, :, None]).latent_dist.mode() - mean) / std)[:, :, 0]
    found = Autoencoder(Checkpoint.open(str(editing)), "cpu", torch.float32, "encoder").encode(images)
    assert expected.std() > 0.1
    assert torch.allclose(found, expected, atol=1e-5)
