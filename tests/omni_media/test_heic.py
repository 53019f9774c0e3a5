"""Photos in HEIC, as telephones make them, with the extra ``heif``. The file is made here: no library writes it."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest

from omni_media.api import images

pytest.importorskip("pi_heif")

SIDE = 64


def box(kind: bytes, content: bytes, version: int | None = None) -> bytes:
    content = content if version is None else struct.pack(">I", version << 24) + content
    return struct.pack(">I", len(content) + 8) + kind + content


def heic(pixels: np.ndarray) -> bytes:
    """Return a picture as ISO/IEC 23008-12 has it: one item of HEVC, turned by 90 degrees counter-clockwise."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx265", rate=1)
        stream.width, stream.height, stream.pix_fmt = pixels.shape[1], pixels.shape[0], "yuv420p"
        stream.options = {"x265-params": "log-level=none"}
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts = 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    data = file.getvalue()
    at = data.index(b"hvcC") - 4
    settings = data[at : at + int.from_bytes(data[at : at + 4], "big")]
    media = data[
        data.index(b"mdat") + 4 : data.index(b"mdat") - 4 + int.from_bytes(data[data.index(b"mdat") - 4 :][:4], "big")
    ]
    size = box(b"ispe", struct.pack(">II", pixels.shape[1], pixels.shape[0]), 0)
    properties = box(b"ipco", settings + size + box(b"irot", b"\x01"))
    used = box(b"ipma", struct.pack(">IHB3B", 1, 1, 3, 0x81, 0x02, 0x83), 0)

    def meta(offset: int) -> bytes:
        handler = box(b"hdlr", bytes(4) + b"pict" + bytes(13), 0)
        item = box(b"iinf", struct.pack(">H", 1) + box(b"infe", struct.pack(">HH", 1, 0) + b"hvc1\0", 2), 0)
        place = box(b"iloc", struct.pack(">BBHHHHII", 0x44, 0, 1, 1, 0, 1, offset, len(media)), 0)
        primary = box(b"pitm", struct.pack(">H", 1), 0)
        return box(b"meta", handler + primary + place + item + box(b"iprp", properties + used), 0)

    head = box(b"ftyp", b"heic" + bytes(4) + b"mif1heic")
    return head + meta(len(head) + len(meta(0)) + 8) + box(b"mdat", media)


def test_a_photo_in_heic_equals_its_pixels() -> None:
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[:, : SIDE // 2] = 200
    [found] = images({"data": heic(pixels)})
    assert np.abs(np.asarray(found).astype(int) - np.rot90(pixels)).max() <= 4
