"""The last stage: latents to pixels, by diffusers' autoencoder."""

from __future__ import annotations

from typing import Any

import torch

from omni_diffusion.decoding import DecodingScheduler, split
from omni_diffusion.pixels import to_bytes, unpack
from omni_diffusion.qwen_image.autoencoder import Autoencoder
from omni_diffusion.qwen_image.checkpoint import Checkpoint, dtype_of

LATENT = 8
"""Pixels of a latent, in each direction."""


class Decoder(DecodingScheduler):
    """Decodes the latents of a request, and of its previews as they come."""

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._autoencoder, self._device = Autoencoder(checkpoint, device, dtype, "decoder"), device

    @torch.inference_mode()
    def pixels(self, found: list[Any]) -> list[Any]:
        packed = torch.cat([each["latents"] for each in found]).to(self._device, self._autoencoder.dtype)
        latents = unpack(packed, found[0]["height"] // LATENT, found[0]["width"] // LATENT)
        return split(to_bytes(self._autoencoder.decode(latents)).numpy(), found)


def create_decoder(model_path: str, device: str = "cpu", dtype: str | None = None) -> Decoder:
    """Build the stage. See :data:`omni_diffusion.qwen_image.interface.OPTIONS`."""
    return Decoder(Checkpoint.open(model_path), device, dtype_of(dtype, device))
