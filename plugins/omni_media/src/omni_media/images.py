"""Decodes images with Pillow: upright and in RGB."""

from __future__ import annotations

import threading
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omni_media.source import Fits, Limits, MediaSource

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""The formats that are read. Pillow has readers of many more, and one of them starts a program."""

_ROWS = 256

_OPENING = threading.Lock()
"""Headers are read one at a time: the filters of warnings are those of all threads."""


def load_image(source: MediaSource, limits: Limits, fits: Fits = lambda *size: None) -> Image.Image:
    """Load the image of a content part: ``path``, ``data`` (the bytes of a file), or ``image`` (a uint8 array).

    The array is ``[H, W, 3]``, or ``[H, W, 4]`` with an alpha channel, which is composited on white. For files, the
    alpha channel is dropped and transparent palette colours become white. Both match transformers' processor. PIL
    images cannot be sent to a pipeline; pass ``numpy.asarray(image)``.

    Args:
        fits: called with ``1, height, width`` before anything is decoded; may raise RequestTooLargeError.

    Raises:
        InvalidRequestError: not an image, damaged or too large; the message names it.
    """
    given = source.part.get("image")
    if isinstance(given, np.ndarray):
        if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] not in (3, 4):
            raise source.fail(
                f"an image array must be uint8 [height, width, 3 or 4], is {given.dtype} {list(given.shape)}"
            )
        return _on_white(_checked(source, limits, fits, Image.fromarray(given)))
    if given is not None:
        raise source.fail(f"`image` must be a uint8 array [height, width, 3 or 4], is of type {type(given).__name__}")
    try:
        with source.open(limits) as stream:
            with _OPENING, warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is checked below
                image: Image.Image = Image.open(stream, formats=FORMATS)
            image = _checked(source, limits, fits, image)
            return _on_white(image if image.mode == "RGB" else image.convert("RGB"))
    except UnidentifiedImageError:
        raise source.fail("not an image, or an unsupported format") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise source.fail(f"the image is damaged or truncated: {error}") from error


def _checked(source: MediaSource, limits: Limits, fits: Fits, image: Image.Image) -> Image.Image:
    """Check the bounds on the header, before the pixels are decoded, then decode."""
    width, height = image.size
    if width * height > limits.max_image_pixels:
        raise source.too_large(
            f"{width} x {height} pixels are over the limit of {limits.max_image_pixels} (max_image_pixels)"
        )
    source.check_sides(width, height)
    fits(1, height, width)
    source.spend("request_pixels", width * height, limits)
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _on_white(image: Image.Image) -> Image.Image:
    """Convert an image to RGB; transparent pixels become white, whatever colour is stored there."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    whole = Image.new("RGB", image.size)
    for top in range(0, image.height, _ROWS):  # in strips: several copies of a large image would be too much at once
        box = (0, top, image.width, min(top + _ROWS, image.height))
        strip = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
        whole.paste(Image.alpha_composite(white, strip).convert("RGB"), box)
    return whole
