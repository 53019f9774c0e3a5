"""Sound and videos in many formats, made by the tests with PyAV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np

RATE = 16_000
TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE)).astype(np.float32)
"""Two seconds."""


class Pipe(io.RawIOBase):
    """A file that cannot seek: a muxer corrects nothing in its header at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


def encoded(form: str, codec: str, *, rate: int = 48_000, piped: bool = False, layout: str = "mono") -> bytes:
    """Return :data:`TONE` as a file whose codec has ``rate``, in every channel of a layout."""
    rate = RATE if codec in ("flac", "aac", "wavpack", "tta", "alac") or codec.startswith(("pcm", "adpcm")) else rate
    rate = 8_000 if codec.startswith("libopencore") else rate
    pipe, file = Pipe(), io.BytesIO()
    with av.open(pipe if piped else file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        if codec == "wmav2":
            stream.bit_rate = 96_000
        _add_sound(container, stream, TONE, 0, layout)
    return bytes(pipe.data) if piped else file.getvalue()


def _add_sound(container: Any, stream: Any, samples: np.ndarray[Any, Any], begin: float, layout: str = "mono") -> None:
    channels = np.repeat((samples * 32767).astype("<i2"), av.AudioLayout(layout).nb_channels)
    frame = av.AudioFrame.from_ndarray(channels[None], format="s16", layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = RATE, round(begin * RATE), Fraction(1, RATE)
    container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def pictured(
    times: Sequence[float],
    *,
    form: str = "matroska",
    codec: str = "ffv1",
    size: tuple[int, int] = (32, 16),
    sound: np.ndarray[Any, Any] | None = None,
    sound_begin: float = 0.0,
    codec_options: dict[str, str] | None = None,
    **options: str,
) -> bytes:
    """Return a video with a frame at each time, the n-th of which is of the grey ``4 * n``; its left upper corner is white."""
    file = io.BytesIO()
    with av.open(file, "w", format=form, options=options) as container:
        stream = container.add_stream(codec, rate=25, options=codec_options or {})
        stream.width, stream.height = size
        stream.pix_fmt = {"ffv1": "bgr0", "mjpeg": "yuvj420p", "gif": "rgb8", "prores_ks": "yuv422p10le"}.get(
            codec, "yuv420p"
        )
        stream.time_base = stream.codec_context.time_base = Fraction(1, 25 if codec == "mpeg2video" else 1000)
        stream.bit_rate = 8_000_000
        heard = (
            container.add_stream("pcm_s16le" if form == "matroska" else "aac", rate=RATE, layout="mono")
            if sound is not None
            else None
        )
        for number, time in enumerate(times):
            pixels = np.full((size[1], size[0], 3), 4 * number % 256, np.uint8)
            pixels[: size[1] // 2, : size[0] // 4] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = round(time * 1000), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if heard is not None and sound is not None:
            _add_sound(container, heard, sound, sound_begin)
    return file.getvalue()


def numbers(frames: np.ndarray[Any, Any]) -> list[int]:
    """Return which frames of :func:`pictured` these are."""
    return [round(float(each[-4:, -4:].mean()) / 4) for each in frames]
