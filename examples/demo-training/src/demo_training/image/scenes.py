"""Scenes of one or two coloured shapes, edits of them, and their pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from attrs import evolve, frozen

from omni_demo.image.words import COLOURS, SHAPES

RGB = {
    "red": (0.87, 0.12, 0.13),
    "orange": (0.97, 0.52, 0.07),
    "yellow": (0.97, 0.86, 0.13),
    "green": (0.13, 0.63, 0.24),
    "blue": (0.13, 0.35, 0.87),
    "purple": (0.56, 0.17, 0.72),
    "black": (0.08, 0.08, 0.09),
}
BACKGROUND = 0.96
_LAYOUTS = (("beside", "stacked"), ("single",))
HELD_OUT = 0.15
"""The share of scenes with two objects that no training sees."""


def pick(random: np.random.Generator, options: Sequence[str]) -> str:
    """Return one of the options."""
    return options[int(random.integers(len(options)))]


@frozen
class Thing:
    """A shape in a picture: its middle and its radius in parts of the picture's side."""

    colour: str
    shape: str
    x: float
    y: float
    radius: float


@frozen
class Scene:
    """One thing, or two ``beside`` each other (first left) or ``stacked`` (first above)."""

    layout: str
    things: tuple[Thing, ...]


def held_out(scene: Scene) -> bool:
    """Return whether the scene, however it is said and wherever its things lie exactly, is kept for the tests."""
    if len(scene.things) < 2:
        return False
    key = " ".join([scene.layout, *(word for thing in scene.things for word in (thing.colour, thing.shape))])
    return hashlib.sha256(key.encode()).digest()[0] < 256 * HELD_OUT


def draw_scene(random: np.random.Generator, tested: bool = False) -> Scene:
    """Return a scene at random. ``tested``: two things in a combination that is held out; else one that is not."""
    while True:
        layout = pick(random, _LAYOUTS[0 if tested else random.random() < 0.2])
        wobble = random.uniform(-0.03, 0.03, 4)
        if layout == "single":
            places = [(0.5 + wobble[0], 0.5 + wobble[1])]
            radius = random.uniform(0.22, 0.28)
        else:
            along = [(0.27 + wobble[0], 0.5 + wobble[1]), (0.73 + wobble[2], 0.5 + wobble[3])]
            places = along if layout == "beside" else [(y, x) for x, y in along]
            radius = random.uniform(0.15, 0.18)
        things = [Thing(pick(random, COLOURS), pick(random, SHAPES), x, y, radius) for x, y in places]
        scene = Scene(layout, tuple(things))
        if len({(each.colour, each.shape) for each in things}) == len(things) and held_out(scene) == tested:
            return scene


@frozen
class Edit:
    """A change of one thing of a scene: ``recolour``, ``reshape`` or ``remove``. ``index``: which; ``new``: its new colour or shape."""

    kind: str
    index: int
    new: str

    def apply(self, scene: Scene) -> Scene:
        """Return the scene after the edit."""
        things = list(scene.things)
        if self.kind == "remove":
            del things[self.index]
        elif self.kind == "recolour":
            things[self.index] = evolve(things[self.index], colour=self.new)
        else:
            things[self.index] = evolve(things[self.index], shape=self.new)
        return Scene(scene.layout, tuple(things))


def draw_edit(scene: Scene, random: np.random.Generator) -> Edit:
    """Return an edit at random that changes something."""
    kinds = ["recolour", "recolour", "reshape", "reshape"] + ["remove"] * (len(scene.things) > 1)
    kind, index = pick(random, kinds), int(random.integers(len(scene.things)))
    thing = scene.things[index]
    words = {
        "recolour": [each for each in COLOURS if each != thing.colour],
        "reshape": [each for each in SHAPES if each != thing.shape],
    }
    return Edit(kind, index, pick(random, words[kind]) if kind in words else "")


def render(scenes: list[Scene], side: int) -> torch.Tensor:
    """Draw scenes: float32 ``[n, 3, side, side]`` in [-1, 1], edges smoothed over a pixel."""
    axis = (torch.arange(side) + 0.5) / side
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    images = torch.full((len(scenes), 3, side, side), BACKGROUND)
    for slot in range(max(len(scene.things) for scene in scenes)):
        for shape in SHAPES:
            rows = [
                row
                for row, scene in enumerate(scenes)
                if slot < len(scene.things) and scene.things[slot].shape == shape
            ]
            if not rows:
                continue
            things = [scenes[row].things[slot] for row in rows]
            numbers = torch.tensor([(each.x, each.y, each.radius) for each in things], dtype=torch.float32)[
                :, :, None, None
            ]
            distance = _distance(shape, x - numbers[:, 0], y - numbers[:, 1], numbers[:, 2])
            cover = (0.5 - distance * side).clamp(0, 1)[:, None]
            colour = torch.tensor([RGB[each.colour] for each in things])[:, :, None, None]
            images[rows] = images[rows] * (1 - cover) + colour * cover
    return images * 2 - 1


def _distance(shape: str, x: torch.Tensor, y: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Return the distance of places from the edge of a shape, negative inside; ``y`` points down."""
    if shape == "circle":
        return torch.hypot(x, y) - radius
    if shape == "square":
        return torch.maximum(x.abs(), y.abs()) - 0.87 * radius
    if shape == "triangle":
        y, reach = y + 0.2 * radius - 0.35 * radius, 1.15 * radius
        return torch.maximum(y, x.abs() * 0.866025 - y * 0.5) - reach / 2
    fifth, outer, inner = torch.pi / 5, 1.2 * radius, 1.2 * 0.45 * radius
    angle = torch.remainder(torch.atan2(x, -y) + fifth, 2 * fifth) - fifth
    along, across = torch.hypot(x, y) * angle.cos(), torch.hypot(x, y) * angle.abs().sin()
    tip_x, tip_y = inner * np.cos(fifth) - outer, inner * np.sin(fifth)
    return (across * -tip_x + (along - outer) * tip_y) / torch.hypot(tip_x, tip_y)
