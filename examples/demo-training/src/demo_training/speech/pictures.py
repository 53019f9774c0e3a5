"""Makes training pictures: filled with a colour, or a shape of that colour on a grey background."""

from __future__ import annotations

import colorsys

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

HUES = {"red": (-8, 8), "yellow": (50, 62), "green": (95, 140), "blue": (210, 245)}
"""In degrees. Hues between the ranges belong to no colour."""
_OTHER_HUES = ((26, 34), (170, 185), (275, 320))
SHAPES = ("ground", "square", "circle", "triangle")

Pixels = npt.NDArray[np.uint8]


def draw_picture(colour: str | None, random: np.random.Generator, noise: float = 12.0) -> Pixels:
    """Return a picture ``[height, width, 3]`` of a colour; ``None``: of a colour that the demo does not know.

    Args:
        noise: the largest standard deviation of the noise on every pixel, of 255.
    """
    width, height = (int(side) for side in random.integers(64, 161, 2))
    if colour is None:
        fill = _unknown_colour(random)
        if random.random() < 0.3:
            return _patchwork(width, height, random)
    else:
        fill = _colour(HUES[colour], random)
    image = _shape(str(random.choice(SHAPES)), fill, width, height, random)
    pixels = np.asarray(image, np.float32) + random.normal(0, random.uniform(0, noise), (height, width, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def _colour(hues: tuple[float, float], random: np.random.Generator) -> tuple[int, int, int]:
    hue = random.uniform(*hues) / 360 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, random.uniform(0.75, 1), random.uniform(0.65, 1))
    return round(255 * red), round(255 * green), round(255 * blue)


def _grey(random: np.random.Generator) -> tuple[int, int, int]:
    level = int(random.integers(0, 256))
    return level, level, level


def _unknown_colour(random: np.random.Generator) -> tuple[int, int, int]:
    if random.random() < 0.5:
        return _grey(random)
    return _colour(_OTHER_HUES[int(random.integers(len(_OTHER_HUES)))], random)


def _patchwork(width: int, height: int, random: np.random.Generator) -> Pixels:
    """All colours, and ``None``."""
    coarse = random.integers(0, 256, (int(random.integers(3, 9)), int(random.integers(3, 9)), 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def _shape(shape: str, fill: tuple[int, int, int], width: int, height: int, random: np.random.Generator) -> Image.Image:
    if shape == "ground":
        return Image.new("RGB", (width, height), fill)
    image = Image.new("RGB", (width, height), _grey(random))
    size = random.uniform(0.5, 0.95) * min(width, height)
    left, top = random.uniform(0, width - size), random.uniform(0, height - size)
    box = (left, top, left + size, top + size)
    pen = ImageDraw.Draw(image)
    if shape == "square":
        pen.rectangle(box, fill)
    elif shape == "circle":
        pen.ellipse(box, fill)
    else:
        pen.polygon([(left, top + size), (left + size, top + size), (left + size / 2, top)], fill)
    return image
