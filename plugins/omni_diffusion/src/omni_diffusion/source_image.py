"""The image of a request that is to be edited: its bytes, and its pixels upright in RGB."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omni_core.api import InvalidRequestError, RequestTooLargeError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""The formats that are read. Pillow has readers of many more, and one of them starts a program."""

MOST_PIXELS = 50_000_000
"""Width times height of an image, before it is resized."""


def content_of(part: dict[str, Any]) -> bytes:
    """Return what determines the image of a content part: the file's bytes, or the array's with its shape.

    Raises:
        InvalidRequestError: the file cannot be read, or the array is no image.
    """
    array = part.get("image")
    if array is not None:
        if (
            not isinstance(array, np.ndarray)
            or array.dtype != np.uint8
            or array.ndim != 3
            or array.shape[2] not in (3, 4)
        ):
            raise InvalidRequestError("the image must be a uint8 array [height, width, 3 or 4]")
        return f"{array.shape} ".encode() + array.tobytes()
    if part.get("data") is not None:
        return bytes(part["data"])
    path = part.get("path")
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise InvalidRequestError(f"the image {path!r} cannot be read: {error.strerror or error}") from None


def read_image(part: dict[str, Any]) -> Image.Image:
    """Decode the image of a content part.

    Raises:
        InvalidRequestError: not an image of :data:`FORMATS`, damaged, or of more than :data:`MOST_PIXELS` (RequestTooLargeError).
    """
    if part.get("image") is not None:
        return Image.fromarray(part["image"]).convert("RGB")
    name = f"the image {part['path']!r}" if part.get("path") else "the image"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is checked below
            image = Image.open(io.BytesIO(content_of(part)), formats=FORMATS)
        if image.width * image.height > MOST_PIXELS:
            raise RequestTooLargeError(f"{name} has {image.width} x {image.height} pixels; {MOST_PIXELS:,} are allowed")
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return image if image.mode == "RGB" else image.convert("RGB")
    except UnidentifiedImageError:
        raise InvalidRequestError(f"{name} is not of a known format: {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidRequestError(f"{name} is damaged or truncated: {error}") from None
