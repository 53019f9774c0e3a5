"""Trains the denoiser by flow matching: on scenes with their descriptions, and on edits with an instruction and the picture before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from attrs import frozen

from demo_training.image.loop import train
from demo_training.image.prompts import describe, instruct
from demo_training.image.scenes import Edit, Scene, draw_edit, draw_scene, held_out, render
from demo_training.image.text import padded
from omni_demo.image.networks import Autoencoder, Denoiser, Shape, TextEncoder

_BATCH, _EDITS, _NO_PROMPT = 32, 0.35, 0.1


@frozen(eq=False)
class Pairs:
    """Scenes with an edit each, and the latents of the pictures before and after, ``[n, positions, channels]``."""

    scenes: list[Scene]
    edits: list[Edit]
    before: torch.Tensor
    after: torch.Tensor


def positions(latents: torch.Tensor) -> torch.Tensor:
    """``[n, channels, height, width]`` to ``[n, height * width, channels]``."""
    return latents.flatten(2).transpose(1, 2)


@torch.inference_mode()
def make_pairs(count: int, shape: Shape, autoencoder: Autoencoder, random: np.random.Generator) -> Pairs:
    """Draw scenes and edits of the training, and encode them."""
    scenes: list[Scene] = []
    edits: list[Edit] = []
    while len(scenes) < count:
        scene = draw_scene(random)
        edit = draw_edit(scene, random)
        if not held_out(edit.apply(scene)):
            scenes.append(scene)
            edits.append(edit)
    side = shape.grid * shape.read

    def encode(wanted: list[Scene]) -> torch.Tensor:
        rows = [autoencoder.encode(render(wanted[begin : begin + 64], side)) for begin in range(0, count, 64)]
        return positions(torch.cat(rows))

    return Pairs(
        scenes, edits, encode(scenes), encode([edit.apply(scene) for scene, edit in zip(scenes, edits, strict=True)])
    )


def train_denoiser(
    shape: Shape,
    folder: Path,
    autoencoder: Autoencoder,
    text: TextEncoder,
    pairs: Pairs,
    steps: int,
    seconds: float | None = None,
) -> Denoiser:
    """Return the denoiser after ``steps`` steps, or ``seconds``. The latents must be normalised."""
    torch.manual_seed(2)
    random = np.random.default_rng(2)
    network = Denoiser(shape)

    def loss(_: int) -> torch.Tensor:
        rows = random.integers(0, len(pairs.scenes), _BATCH)
        edited = random.random(_BATCH) < _EDITS
        texts = []
        for row, edits in zip(rows, edited, strict=True):
            scene = pairs.scenes[row]
            texts.append(instruct(scene, pairs.edits[row], random)[0] if edits else describe(scene, random))
            if random.random() < _NO_PROMPT:
                texts[-1] = ""
        is_edit = torch.from_numpy(edited)[:, None, None]
        before, after = pairs.before[rows], pairs.after[rows]
        clean = torch.where(is_edit, after, before)
        given = torch.where(is_edit, before, torch.nan)
        with torch.no_grad():
            conditions = text(padded(texts))
        levels = torch.sigmoid(torch.randn(_BATCH) * 1.2 + 0.4)
        noise = torch.randn_like(clean)
        noisy = torch.lerp(clean, noise, levels[:, None, None])
        guess = network(noisy, levels, conditions, given).float()
        weight = 1 / levels.clamp(min=0.15).square()
        return ((guess - clean).square().mean((1, 2)) * weight).mean() / 4

    train("denoiser", network, loss, folder, steps=steps, rate=0.01, seconds=seconds)
    return network
