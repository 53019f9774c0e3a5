"""Images: Pillow decodes, upright and in RGB."""

from __future__ import annotations

import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omni_qwen3.media.source import Limits, MediaSource

LARGEST_ASPECT_RATIO = 200
"""The reference's image processor refuses anything more extreme."""


def load_image(source: MediaSource, limits: Limits) -> Image.Image:
    """The picture of a content part: ``path``, ``data``, or ``image`` (a PIL image or an ``[H, W, 3]`` uint8 array).

    Raises:
        InvalidRequestError: it is no image, is damaged or too large; the message names it.
    """
    given = source.part.get("image")
    if isinstance(given, np.ndarray):
        if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] != 3:
            raise source.fail(f"an image array must be uint8 [height, width, 3], is {given.dtype} {list(given.shape)}")
        given = Image.fromarray(given)
    if isinstance(given, Image.Image):
        return _checked(source, limits, given)
    try:
        with source.open(limits) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit follows
            return _checked(source, limits, Image.open(stream))
    except UnidentifiedImageError:
        raise source.fail("this is no image, or of a format that cannot be read") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise source.fail(f"the image is damaged or cut off: {error}") from error


def _checked(source: MediaSource, limits: Limits, image: Image.Image) -> Image.Image:
    """Bounds are checked on the header, before the pixels are decoded."""
    width, height = image.size
    if width * height > limits.max_image_pixels:
        raise source.fail(
            f"{width} x {height} pixels are over the limit of {limits.max_image_pixels} (max_image_pixels)"
        )
    if max(width, height) > LARGEST_ASPECT_RATIO * min(width, height):
        raise source.fail(f"{width} x {height} pixels: one side is over {LARGEST_ASPECT_RATIO} times the other")
    image.load()
    return ImageOps.exif_transpose(image).convert("RGB")
