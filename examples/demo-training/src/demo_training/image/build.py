"""Trains the three networks one after the other and writes the checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from attrs import frozen

from demo_training.image.autoencoder import train_autoencoder
from demo_training.image.denoising import make_pairs, train_denoiser
from demo_training.image.text import train_text
from omni_demo.image.checkpoint import Networks, write_checkpoint
from omni_demo.image.networks import Shape


@frozen
class Steps:
    """Training steps of each network, and scenes that the denoiser sees, each with an edit."""

    autoencoder: int = 1600
    text: int = 900
    denoiser: int = 14000
    pairs: int = 16384


def build(folder: Path, steps: Steps, minutes: float | None = None) -> Path:
    """Train in ``folder``, on one thread. A network that is trained already is kept.

    Args:
        minutes: the denoiser's training ends after so many at the latest, its schedule in time with it.

    Returns:
        The checkpoint ``folder/checkpoint``.
    """
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    shape = Shape()
    autoencoder = train_autoencoder(shape, folder, steps.autoencoder)
    text = train_text(shape, folder, steps.text)
    pairs = make_pairs(steps.pairs, shape, autoencoder, np.random.default_rng(5))
    seconds = None if minutes is None else 60 * minutes
    denoiser = train_denoiser(shape, folder, autoencoder, text, pairs, steps.denoiser, seconds)
    write_checkpoint(folder / "checkpoint", Networks(shape, text, denoiser, autoencoder))
    return folder / "checkpoint"
