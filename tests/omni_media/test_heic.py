"""Photos in HEIC, as telephones make them, with the extra ``heif``."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from omni_media.api import images

pytest.importorskip("pi_heif")

PHOTO = base64.b64decode(
    b"AAAAGGZ0eXBoZWljAAAAAG1pZjFoZWljAAABNG1ldGEAAAAAAAAAIWhkbHIAAAAAAAAAAHBpY3QAAAAAAAAAAAAAAAAAAAAADnBpdG0AAAAAAAEA"
    b"AAAeaWxvYwAAAABEAAABAAEAAAABAAABVAAAABcAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAALhpcHJwAAAAmmlwY28AAAB1"
    b"aHZjQwEBYAAAAJAAAAAAAB7wAPz9+PgAAA8DIAABABhAAQwB//8BYAAAAwCQAAADAAADAB6VmAkhAAEAKEIBAQFgAAADAJAAAAMAAAMAHqAggQWW"
    b"VmkkyuaAgAAAAwCAAAADAIQiAAEAB0QBwXK0IkAAAAAUaXNwZQAAAAAAAABAAAAAQAAAAAlpcm90AQAAABZpcG1hAAAAAAAAAAEAAQOBAoMAAAAf"
    b"bWRhdAAAABMoAa8TgOZo47/6mzx//9nEjLSs"
)
"""A picture of 64 by 64, whose left half is grey (200), in one item of HEVC that is turned by 90 degrees counter-clockwise."""


def test_a_photo_in_heic_equals_its_pixels() -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:, :32] = 200
    [found] = images({"data": PHOTO})
    assert np.abs(np.asarray(found).astype(int) - np.rot90(pixels)).max() <= 4
