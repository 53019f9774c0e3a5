"""Decodes pictures with Pillow: upright and in RGB."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omni_core.api import InvalidRequestError
from omni_media.source import LIMITS, Fits, Limits, MediaSource, source_of

FORMATS = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"]
"""The formats that are read. Pillow has readers of many more, and one of them starts a program."""

with suppress(ImportError):  # the extra `heif`
    from pi_heif import register_heif_opener

    register_heif_opener()
    FORMATS.append("HEIF")

_ROWS = 256

_OPENING = threading.Lock()
"""Headers are read one at a time: the filters of warnings are those of all threads."""


def opened(stream: IO[bytes]) -> Image.Image:
    """Open a picture of :data:`FORMATS`; its pixels are not decoded yet.

    Raises:
        UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError: it is none, or damaged.
    """
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limits are checked
        return Image.open(stream, formats=FORMATS)


def images(
    part: Mapping[str, Any] | MediaSource, limits: Limits = LIMITS, fits: Fits = lambda *size: None
) -> list[Image.Image]:
    """Decode the pictures of a content part, each in RGB: one of a file, or those of an array.

    Of an animation, and of a file of several pages, the first is read. The alpha channel of a file is dropped and transparent colours of
    a palette become white; an array with an alpha channel is composited on white. Both match transformers' processors.

    Args:
        part: ``path``, ``data`` (the bytes of a file), or ``image`` (uint8 ``[height, width, 3 or 4]``, or several of them,
            ``[n, height, width, 3 or 4]``).
        limits: checked before the pixels are decoded.
        fits: called with ``n, height, width`` before anything is decoded; may raise RequestTooLargeError.

    Raises:
        InvalidRequestError: not a picture, damaged, or over a limit (RequestTooLargeError); the message names the part.
    """
    source = source_of(part, "image")
    given = source.part.get("image")
    if given is not None:
        return _given(source, limits, fits, given)
    try:
        with source.open(limits) as stream:
            image = _checked(source, limits, fits, opened(stream))
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            image = _in_8_bits(source, image)
            return [_on_white(image if image.mode == "RGB" else image.convert("RGB"))]
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise source.fail(f"not an image, or an unsupported format; these are read: {known}") from None
    except InvalidRequestError:
        raise
    except Image.DecompressionBombError:
        most, name = limits.max_image_pixels, limits.option("max_image_pixels")
        raise source.too_large(f"the image is over the limit of {most} pixels ({name})") from None
    except Exception as error:  # the readers of many formats raise many things
        raise source.fail(f"the image is damaged or truncated: {error}") from error


def _given(source: MediaSource, limits: Limits, fits: Fits, given: Any) -> list[Image.Image]:
    if not isinstance(given, np.ndarray):
        raise source.fail(f"`image` must be a uint8 array [height, width, 3 or 4], is of type {type(given).__name__}")
    if given.dtype != np.uint8 or given.ndim not in (3, 4) or given.shape[-1] not in (3, 4):
        raise source.fail(f"an image array must be uint8 [height, width, 3 or 4], is {given.dtype} {list(given.shape)}")
    several = given if given.ndim == 4 else given[None]
    return [_on_white(_checked(source, limits, fits, Image.fromarray(each))) for each in several]


def _checked(source: MediaSource, limits: Limits, fits: Fits, image: Image.Image) -> Image.Image:
    """Return a picture whose size is within the bounds."""
    width, height = image.size
    if width * height > limits.max_image_pixels:
        most, name = limits.max_image_pixels, limits.option("max_image_pixels")
        raise source.too_large(f"{width} x {height} pixels are over the limit of {most} ({name})")
    source.check_sides(width, height)
    fits(1, height, width)
    source.spend("request_pixels", width * height, limits)
    return image


def _in_8_bits(source: MediaSource, image: Image.Image) -> Image.Image:
    """Return a picture of deep or floating-point pixels in 8 bits; Pillow's own conversion would cut them off at 255.

    Integers have the depth that the file says; floats are taken as 0 to 1, or as 0 to 255 or 65,535 where one is above 1.
    """
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    tags = getattr(image, "tag_v2", {})  # of TIFF: BitsPerSample, and SampleFormat, where 1 is unsigned
    bits, unsigned = tags.get(258, (16,))[0], tags.get(339, (1,))[0] == 1
    pixels = np.asarray(image)
    if pixels.dtype == np.int32 and unsigned:  # Pillow has signed ones only
        pixels = pixels.view(np.uint32)
    highest = float(pixels.max(initial=0))
    if not np.isfinite(highest + float(pixels.min(initial=0))):
        raise source.fail("the image holds NaN or infinite pixels")
    scale = 2.0**bits - 1.0 if unsigned else 2.0 ** (bits - 1) - 1.0
    if image.mode == "F":
        scale = next((each for each in (1.0, 255.0, 65_535.0) if highest <= each), highest)
    made = np.empty(pixels.shape, np.uint8)
    for top in range(0, image.height, _ROWS):  # in strips: floats of 64 bits take much memory
        made[top : top + _ROWS] = (pixels[top : top + _ROWS] * (255.0 / scale)).clip(0.0, 255.0).round()
    return Image.fromarray(made)


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
