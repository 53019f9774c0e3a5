"""Encodes images for answers of HTTP."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

FORMATS = ("webp", "jpeg")
"""The formats that lose something, and so take a compression; ``png`` loses nothing."""


def encoded(pixels: Any, kind: str, compression: int | None = None) -> list[bytes]:
    """Return images as files.

    Args:
        pixels: uint8 ``[n, height, width, 3]``.
        kind: ``png``, ``webp`` or ``jpeg``.
        compression: 0 (small) to 100 (good); by default 100, as OpenAI's.
    """
    found = []
    for image in np.asarray(pixels, np.uint8):
        file = io.BytesIO()
        options = {"quality": 100 if compression is None else compression} if kind in FORMATS else {}
        Image.fromarray(image).save(file, kind, **options)
        found.append(file.getvalue())
    return found
