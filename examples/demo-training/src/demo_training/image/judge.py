"""Says what a picture shows by plain image analysis, with no network and nothing learned: regions, their hue, and their outline.

A region is what differs from the background and hangs together. Its colour is the hue of its inside; its shape follows from how much of
its bounding box and of its convex hull it fills.
"""

from __future__ import annotations

import colorsys

import numpy as np
import numpy.typing as npt
from attrs import frozen

from demo_training.image.scenes import Scene

Pixels = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

HUES = {"red": 0.0, "orange": 30.0, "yellow": 53.0, "green": 133.0, "blue": 222.0, "purple": 283.0}
"""Hues in degrees, and below the middle between two neighbours begins the next colour."""

_BACKGROUND, _LEAST = 60, 0.004
_FILLED = {"circle": (0.785, 1.0), "square": (1.0, 1.0), "triangle": (0.5, 1.0), "star": (0.35, 0.56)}
"""Parts of the bounding box and of the convex hull that each shape fills, by geometry."""

_TOLERANCE = 0.13


@frozen
class Seen:
    """A region of a picture: ``?`` is a colour or a shape that is none of the known ones. ``x`` and ``y``: its middle, 0 to 1."""

    colour: str
    shape: str
    x: float
    y: float


def look(pixels: Pixels) -> list[Seen]:
    """Return the regions of a picture, ``[height, width, 3]``, except specks."""
    background = np.median(pixels[:2].reshape(-1, 3), axis=0)
    mask = np.abs(pixels.astype(int) - background).max(-1) > _BACKGROUND
    height, width = mask.shape
    return [
        Seen(_colour(pixels[_inside(region)]), _shape(region), float(xs.mean()) / width, float(ys.mean()) / height)
        for region in _regions(mask)
        for ys, xs in [np.nonzero(region)]
        if len(ys) >= _LEAST * height * width
    ]


def shows(pixels: Pixels, scene: Scene) -> bool:
    """Return whether a picture shows exactly the things of a scene, in their arrangement."""
    seen = look(pixels)
    if sorted((each.colour, each.shape) for each in seen) != sorted((each.colour, each.shape) for each in scene.things):
        return False
    if len(seen) < 2:
        return True
    first, second = scene.things
    one, other = sorted(seen, key=lambda each: (each.colour, each.shape) != (first.colour, first.shape))
    if (other.colour, other.shape) != (second.colour, second.shape):
        return False
    right, down = other.x - one.x, other.y - one.y
    return right > abs(down) if scene.layout == "beside" else down > abs(right)


def _regions(mask: Mask) -> list[Mask]:
    """Return the connected regions of a mask: runs of rows, joined where they touch runs of the row above."""
    runs: list[tuple[int, int, int]] = []
    parents: list[int] = []

    def root(run: int) -> int:
        while parents[run] != run:
            run = parents[run]
        return run

    above: list[int] = []
    for y, row in enumerate(mask):
        borders = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0)).tolist()
        here = []
        for begin, end in zip(borders[::2], borders[1::2], strict=True):
            number = len(runs)
            runs.append((y, begin, end))
            parents.append(number)
            here.append(number)
            for other in above:
                if runs[other][1] < end and begin < runs[other][2]:
                    parents[root(other)] = root(number)
        above = here
    regions: dict[int, Mask] = {}
    for number, (y, begin, end) in enumerate(runs):
        regions.setdefault(root(number), np.zeros_like(mask))[y, begin:end] = True
    return list(regions.values())


def _inside(region: Mask) -> Mask:
    """Return a region without its edge of two pixels, where colours mix; all of it if nothing else is left."""
    inner = region.copy()
    for _ in range(2):
        edged = inner.copy()
        for axis in (0, 1):
            for step in (1, -1):
                edged &= np.roll(inner, step, axis)
        inner = edged
    return inner if inner.any() else region


def _colour(pixels: Pixels) -> str:
    hue, saturation, value = colorsys.rgb_to_hsv(*np.median(pixels, axis=0) / 255)
    if value < 0.25:
        return "black"
    if saturation < 0.5:
        return "?"
    away = {name: abs((hue * 360 - middle + 180) % 360 - 180) for name, middle in HUES.items()}
    nearest = min(away, key=lambda name: away[name])
    return nearest if away[nearest] < 20 else "?"


def _shape(region: Mask) -> str:
    ys, xs = np.nonzero(region)
    width, height = np.ptp(xs) + 1, np.ptp(ys) + 1
    if not 0.75 < width / height < 1.33:
        return "?"
    measured = np.array([len(ys) / (width * height), len(ys) / _hull_area(xs, ys)])
    away = {name: float(np.abs(measured - expected).max()) for name, expected in _FILLED.items()}
    nearest = min(away, key=lambda name: away[name])
    return nearest if away[nearest] < _TOLERANCE else "?"


def _hull_area(xs: npt.NDArray[np.intp], ys: npt.NDArray[np.intp]) -> float:
    """Return the area of the convex hull of pixels, each a unit square, by the monotone chain."""
    corners = np.concatenate([np.stack([xs + dx, ys + dy], 1) for dx in (0, 1) for dy in (0, 1)])
    points = [tuple(map(int, point)) for point in np.unique(corners, axis=0)]

    def half(ordered: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        chain: list[tuple[int, ...]] = []
        for x, y in ordered:
            while len(chain) > 1:
                (ax, ay), (bx, by) = chain[-2], chain[-1]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                chain.pop()
            chain.append((x, y))
        return chain[:-1]

    hull = np.array(half(points) + half(points[::-1]))
    x, y = hull[:, 0], hull[:, 1]
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)
