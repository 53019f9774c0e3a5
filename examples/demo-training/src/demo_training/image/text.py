"""Trains the text encoder alone: of its vectors, plain linear layers must tell what a sentence says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from demo_training.image.loop import train
from demo_training.image.prompts import describe, instruct
from demo_training.image.scenes import draw_edit, draw_scene
from omni_demo.image.networks import Shape, TextEncoder
from omni_demo.image.words import COLOURS, SHAPES, numbers_of

_BATCH = 64
_COLOURS, _SHAPES = ("", *COLOURS), ("", *SHAPES)
KINDS = ("nothing", "single", "beside", "stacked", "recolour", "reshape", "remove")


def padded(texts: list[str]) -> torch.Tensor:
    """Return the numbers of the words of texts, int64 ``[n, longest]``."""
    numbers = [numbers_of(text) for text in texts]
    longest = max(1, max(map(len, numbers)))
    return torch.tensor([each + [0] * (longest - len(each)) for each in numbers])


def example(random: np.random.Generator) -> tuple[str, list[int]]:
    """Return a sentence and what it says: its kind, and colour and shape of two things (left, above, or named to be changed: first)."""
    if random.random() < 0.03:
        return "", [0, 0, 0, 0, 0]
    scene = draw_scene(random)
    if random.random() < 0.5:
        things = [(thing.colour, thing.shape) for thing in scene.things] + [("", "")]
        text, kind = describe(scene, random), scene.layout
    else:
        edit = draw_edit(scene, random)
        kind, thing = edit.kind, scene.things[edit.index]
        text, says_colour = instruct(scene, edit, random)
        things = [
            (thing.colour if says_colour else "", thing.shape),
            (edit.new if kind == "recolour" else "", edit.new if kind == "reshape" else ""),
        ]
    facts = [KINDS.index(kind)]
    for colour, shape in things[:2]:
        facts += [_COLOURS.index(colour), _SHAPES.index(shape)]
    return text, facts


class _Heads(nn.Module):
    """Reads the first vector for the kind, the second for the first thing, the third for the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kind = nn.Linear(width, len(KINDS))
        self.colour = nn.ModuleList(nn.Linear(width, len(_COLOURS)) for _ in range(2))
        self.shape = nn.ModuleList(nn.Linear(width, len(_SHAPES)) for _ in range(2))

    def forward(self, found: torch.Tensor) -> list[torch.Tensor]:
        things = [head(found[:, 1 + index]) for index in range(2) for head in (self.colour[index], self.shape[index])]
        return [self.kind(found[:, 0]), *things]


def train_text(shape: Shape, folder: Path, steps: int) -> TextEncoder:
    """Return the text encoder after ``steps`` steps."""
    torch.manual_seed(1)
    random = np.random.default_rng(1)
    network, heads = TextEncoder(shape), _Heads(shape.text_width)

    def loss(_: int) -> torch.Tensor:
        texts, facts = zip(*(example(random) for _ in range(_BATCH)), strict=True)
        guesses, wanted = heads(network(padded(list(texts)))), torch.tensor(facts).T
        losses = [functional.cross_entropy(guess.float(), fact) for guess, fact in zip(guesses, wanted, strict=True)]
        return torch.stack(losses).sum()

    train("text", network, loss, folder, steps=steps, rate=0.02, others=heads)
    return network
