"""Trains the autoencoder: pictures through latents with a little noise on them, so that near latents are near pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from demo_training.image.loop import train
from demo_training.image.scenes import draw_scene, render
from omni_demo.image.networks import Autoencoder, Shape

_POOL, _FRESH, _BATCH, _NOISE = 1280, 2, 24, 0.05


def train_autoencoder(shape: Shape, folder: Path, steps: int) -> Autoencoder:
    """Return the autoencoder after ``steps`` steps."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    network = Autoencoder(shape)
    side = shape.grid * shape.drawn
    pool = torch.cat(
        [
            render([draw_scene(random) for _ in range(64)], side).half()
            for _ in range(max(1, min(steps * 8, _POOL) // 64))
        ]
    )

    def loss(_: int) -> torch.Tensor:
        pool[random.integers(0, len(pool), _FRESH)] = render([draw_scene(random) for _ in range(_FRESH)], side).half()
        images = pool[random.integers(0, len(pool), _BATCH)].float()
        latents = network.encode(functional.avg_pool2d(images, shape.drawn // shape.read))
        drawn = network.decode(latents + _NOISE * torch.randn_like(latents)).float()
        return (drawn - images).abs().mean() + (drawn - images).square().mean()

    train("autoencoder", network, loss, folder, steps=steps, rate=0.02)
    if bool((network.std == 1).all()):
        _normalise(network, functional.avg_pool2d(pool[:256].float(), shape.drawn // shape.read))
        torch.save(network.state_dict(), folder / "autoencoder.pt")
    return network


@torch.inference_mode()
def _normalise(network: Autoencoder, images: torch.Tensor) -> None:
    """Make the latents of these pictures have mean 0 and standard deviation 1 in each channel."""
    latents = network.encode(images)
    network.mean.copy_(latents.mean((0, 2, 3))[:, None, None])
    network.std.copy_(latents.std((0, 2, 3))[:, None, None])
