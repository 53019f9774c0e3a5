"""Latents in the order of the network and of the autoencoder, and pixels."""

from __future__ import annotations

import torch


def pack(latents: torch.Tensor) -> torch.Tensor:
    """``[n, channels, height, width]`` to ``[n, height * width / 4, 4 * channels]``: a position is a square of two by two."""
    n, channels, height, width = latents.shape
    squares = latents.view(n, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(n, (height // 2) * (width // 2), 4 * channels)


def unpack(packed: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Undo :func:`pack`; ``height`` and ``width`` are those of the latents."""
    n, _, channels = packed.shape
    squares = packed.view(n, height // 2, width // 2, channels // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return squares.reshape(n, channels // 4, height, width)


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """``[n, 3, height, width]`` in [-1, 1] to uint8 ``[n, height, width, 3]`` on the CPU, rounded."""
    shown = (images.float() / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
    return (shown * 255).round().to(torch.uint8).cpu()


def from_bytes(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 ``[n, height, width, 3]`` to float32 ``[n, 3, height, width]`` in [-1, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1.0
