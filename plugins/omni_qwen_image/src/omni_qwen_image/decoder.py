"""The last stage: latents to pixels, by diffusers' autoencoder."""

from __future__ import annotations

from typing import Any

import torch

from omni_diffusion.decoding import DecodingScheduler, split
from omni_diffusion.pixels import to_bytes, unpack
from omni_qwen_image.checkpoint import Checkpoint, dtype_of

LATENT = 8
"""Pixels of a latent, in each direction."""


class Decoder(DecodingScheduler):
    """Decodes the latents of a request, and of its previews as they come."""

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        from diffusers import AutoencoderKLQwenImage

        kind = {} if dtype is None else {"torch_dtype": dtype}
        self._vae = checkpoint.network("vae", AutoencoderKLQwenImage, device, **kind)
        self._device = device

    @torch.inference_mode()
    def pixels(self, found: list[Any]) -> list[Any]:
        config, first = self._vae.config, found[0]
        packed = torch.cat([each["latents"] for each in found]).to(self._device, self._vae.dtype)
        latents = unpack(packed, first["height"] // LATENT, first["width"] // LATENT)
        mean, std = (
            torch.tensor(each).view(1, -1, 1, 1).to(latents) for each in (config.latents_mean, config.latents_std)
        )
        images = self._vae.decode((latents * std + mean)[:, :, None], return_dict=False)[0][:, :, 0]
        return split(to_bytes(images).numpy(), found)


def create_decoder(model_path: str, device: str = "cpu", dtype: str | None = None) -> Decoder:
    """Build the stage. See :data:`omni_qwen_image.interface.OPTIONS`."""
    return Decoder(Checkpoint.open(model_path), device, dtype_of(dtype, device))
