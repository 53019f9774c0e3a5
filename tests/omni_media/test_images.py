"""Pictures of every depth and mode equal their twins in 8 bits, within a level."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_media.api import Limits, images

GREY = np.linspace(0, 255, 32 * 48).round().astype(np.uint8).reshape(32, 48)
COLOURS = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def seen(data: bytes) -> np.ndarray[Any, Any]:
    [image] = images({"data": data})
    assert image.mode == "RGB"
    return np.asarray(image)


DEEP = {
    "16 bits, PNG": (Image.fromarray((GREY * 257.0).astype(np.uint16)), "PNG"),
    "16 bits, TIFF": (Image.fromarray((GREY * 257.0).astype(np.uint16)), "TIFF"),
    "16 bits, TIFF of old Macs": (Image.fromarray((GREY * 257.0).astype(">u2")), "TIFF"),
    "32 bits, TIFF": (Image.fromarray((GREY * (2.0**31 - 1) / 255).astype(np.int32)), "TIFF"),
    "floats of 0 to 1": (Image.fromarray((GREY / 255.0).astype(np.float32)), "TIFF"),
    "floats of 0 to 255": (Image.fromarray(GREY.astype(np.float32)), "TIFF"),
    "floats of 0 to 65,535": (Image.fromarray((GREY * 257.0).astype(np.float32)), "TIFF"),
    "1 bit of each level": (Image.fromarray(GREY), "PNG"),
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_pixels_equal_those_of_8_bits(name: str) -> None:
    image, form = DEEP[name]
    twin = np.repeat(GREY[..., None], 3, axis=2).astype(int)
    assert np.abs(seen(saved(image, form)).astype(int) - twin).max() <= 1


MODES = {
    "RGB": Image.fromarray(COLOURS),
    "CMYK": Image.fromarray(COLOURS).convert("CMYK"),
    "alpha": Image.fromarray(np.dstack([COLOURS, np.full((32, 48), 200, np.uint8)])),
    "LA": Image.fromarray(np.dstack([COLOURS, np.full((32, 48), 200, np.uint8)])).convert("LA"),
    "palette": Image.fromarray(COLOURS).quantize(64),
    "1 bit": Image.fromarray(GREY).convert("1"),
    "YCbCr": Image.fromarray(COLOURS).convert("YCbCr"),
}


@pytest.mark.parametrize("mode", MODES)
def test_pictures_of_every_mode_equal_their_colours(mode: str) -> None:
    image = MODES[mode]
    twin = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(seen(saved(image, "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")).astype(int) - twin).max() <= 1


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_pictures_are_upright(form: str, turn: int) -> None:
    """The upper left quarter is white, seen as the camera was held."""
    upright = np.zeros((32, 48), np.uint8)
    upright[:16, :24] = 255
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].T,
        8: np.rot90(upright, -1),
    }[turn]
    exif = Image.Exif()
    exif[0x0112] = turn
    image = Image.fromarray(np.repeat(np.ascontiguousarray(stored)[..., None], 3, axis=2))
    found = seen(saved(image, form, exif=exif.tobytes()))[..., 0]
    assert found.shape == upright.shape
    assert np.abs(found[4:12, 4:20].astype(int) - 255).max() < 40
    assert found[20:, 28:].max() < 40


def test_several_pictures_of_an_array() -> None:
    found = images({"image": np.stack([COLOURS, COLOURS[::-1]])})
    assert [np.asarray(each).tolist() for each in found] == [COLOURS.tolist(), COLOURS[::-1].tolist()]


def test_what_is_no_picture_is_named() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"the image: .*these are read: PNG, JPEG, WEBP, GIF, BMP, TIFF, AVIF"
    ):
        images({"data": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"})
    with pytest.raises(InvalidRequestError, match="damaged or truncated"):
        images({"data": saved(Image.fromarray(COLOURS), "PNG")[:100]})
    with pytest.raises(InvalidRequestError, match="NaN or infinite"):
        images({"data": saved(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF")})
    with pytest.raises(RequestTooLargeError, match="max_image_pixels"):
        images({"data": saved(Image.fromarray(COLOURS), "PNG")}, Limits(max_image_pixels=1000))


def test_a_picture_that_pillow_takes_for_a_bomb_is_over_our_limit() -> None:
    data = saved(Image.new("1", (20_000, 10_000)), "PNG")
    with pytest.raises(RequestTooLargeError, match=r"over the limit of \d+ pixels \(max_image_pixels\)"):
        images({"data": data})
