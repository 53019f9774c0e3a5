"""Encodes speech to a file format as it is made: one encoder for a request, whose state goes on from piece to piece.

A stream is decodable from its beginning, and its sound equals that of the whole: nothing restarts at the borders of the pieces.
"""

from __future__ import annotations

import asyncio
import io
import math
import struct
from fractions import Fraction
from typing import Annotated, Any, Protocol

import av
import av.filter
import numpy as np
import numpy.typing as npt
import soxr
from attrs import define, field, frozen
from pydantic import Field

from omni_serve.errors import invalid
from omni_serve.g711 import LAW_RATE, Law, to_law

Samples = npt.NDArray[np.float32]

SampleRate = Annotated[int, Field(ge=8_000, le=48_000, strict=True)]
"""A sample rate that clients may ask for, in Hz."""

PCM_RATE = 24_000
"""Of headerless PCM, which carries no rate: OpenAI's clients play it at this one."""

_MANY = 2 * PCM_RATE
"""Samples that are too many to encode on the event loop."""


@frozen
class Format:
    """A file format: its media type, and for PyAV the container, the codec and their options.

    Attributes:
        rates: sample rates that the codec takes; empty: any.
        usual: the rate where a client asks for none; ``None``: that of the sound, or the next above it that the codec takes.
        law: of G.711.
        live: options of the container for a stream, which cannot be corrected at its end.
    """

    media_type: str
    container: str = ""
    codec: str = ""
    bit_rate: int = 0
    rates: tuple[int, ...] = ()
    usual: int | None = None
    law: Law | None = None
    live: tuple[tuple[str, str], ...] = ()


_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_AAC_RATES = (*_MP3_RATES, 64000, 88200, 96000)

FORMATS = {
    "mp3": Format(
        "audio/mpeg", "mp3", "libmp3lame", 96_000, _MP3_RATES, live=(("write_xing", "0"), ("id3v2_version", "0"))
    ),
    "opus": Format(
        "audio/ogg", "ogg", "libopus", 64_000, (8000, 12000, 16000, 24000, 48000), live=(("page_duration", "20000"),)
    ),
    "aac": Format("audio/aac", "adts", "aac", 96_000, _AAC_RATES),
    "flac": Format("audio/flac", "flac", "flac"),
    "wav": Format("audio/wav"),
    "pcm": Format("audio/pcm", usual=PCM_RATE),
    "pcm16": Format("audio/pcm", usual=PCM_RATE),
    "pcmu": Format("audio/pcmu", usual=LAW_RATE, law="pcmu"),
    "pcma": Format("audio/pcma", usual=LAW_RATE, law="pcma"),
}
"""Those without a header have a usual rate."""


def media_type(name: str, rate: int | None = None) -> str:
    """Return the content type of a format. ``rate``: what a client has asked for."""
    form = FORMATS[name]
    return form.media_type + (f";rate={rate or form.usual};channels=1" if form.usual else "")


def check_rate(name: str, rate: int | None, where: str) -> None:
    """Check the sample rate that a client has asked for; ``where`` is its path.

    Raises:
        ApiError: 400, the codec of the format has no such rate.
    """
    rates = FORMATS[name].rates
    if rate is not None and rates and rate not in rates:
        known = ", ".join(f"{each:,}" for each in rates if each <= 48_000)
        raise invalid(f"{where}: {name} has no {rate:,} Hz; it has {known}", where, "unsupported_value")


class Encoder(Protocol):
    """Takes mono float32 samples and returns the bytes that are complete."""

    def write(self, samples: Samples) -> bytes: ...

    def finish(self) -> bytes: ...


def encoder(name: str, rate: int, *, live: bool, speed: float = 1.0, target: int | None = None) -> Encoder:
    """Return an encoder for one answer.

    Args:
        name: a key of :data:`FORMATS`.
        rate: of the samples, in Hz.
        live: true for a stream; false if all bytes are sent at the end, with exact lengths in their headers.
        speed: 0.25 to 4; the pitch stays.
        target: the sample rate of the answer, which :func:`check_rate` has checked; ``None``: the format's.
    """
    form = FORMATS[name]
    out = target or form.usual or _nearest(rate, form.rates)
    made: Encoder
    if form.container:
        made = _Container(form, out, live=live)
    elif name == "wav":
        made = _Wav(out, live=live)
    elif form.law is not None:
        made = _Law(form.law)
    else:
        made = _Pcm()
    made = made if out == rate else _Resampled(made, rate, out)
    return made if speed == 1.0 else _Stretched(made, rate, speed)


async def written(encoder: Encoder, sound: Samples) -> bytes:
    """Return what an encoder makes of samples; of many, in a thread: a codec takes a hundredth of their time."""
    if len(sound) < _MANY:
        return encoder.write(sound)
    return await asyncio.to_thread(encoder.write, sound)


def whole(name: str, pieces: list[Samples], rate: int, target: int | None = None) -> bytes:
    """Return a whole file."""
    made = encoder(name, rate, live=False, target=target)
    return b"".join([*(made.write(piece) for piece in pieces), made.finish()])


def pcm16(samples: Samples) -> bytes:
    """Return 16-bit little-endian PCM."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


class _Pcm:
    def write(self, samples: Samples) -> bytes:
        return pcm16(samples)

    def finish(self) -> bytes:
        return b""


@frozen
class _Law:
    law: Law

    def write(self, samples: Samples) -> bytes:
        return to_law(np.frombuffer(pcm16(samples), "<i2"), self.law)

    def finish(self) -> bytes:
        return b""


@define
class _Wav:
    """16-bit WAV. A stream's header says the greatest length, which players read as: until the end."""

    rate: int
    live: bool
    _begun: bool = False
    _kept: list[bytes] = field(factory=list)

    def write(self, samples: Samples) -> bytes:
        data = pcm16(samples)
        if self.live:
            header = b"" if self._begun else wav_header(self.rate, None)
            self._begun = True
            return header + data
        self._kept.append(data)
        return b""

    def finish(self) -> bytes:
        if self.live:
            return b"" if self._begun else wav_header(self.rate, None)
        return b"".join([wav_header(self.rate, sum(map(len, self._kept))), *self._kept])


def wav_header(rate: int, size: int | None) -> bytes:
    """Return the header of mono 16-bit PCM of ``size`` bytes; ``None``: of unknown length."""
    unknown = 0xFFFFFFFF
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        unknown if size is None else size + 36,
        b"WAVE",
        b"fmt ",
        16,
        1,
        1,
        rate,
        rate * 2,
        2,
        16,
        b"data",
        unknown if size is None else size,
    )


class _Sink(io.RawIOBase):
    """The file that a container of a stream writes to: it cannot seek back."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken


class _Container:
    """An FFmpeg container with one audio stream."""

    def __init__(self, form: Format, rate: int, *, live: bool) -> None:
        self._rate, self._count = rate, 0
        self._sink: _Sink | io.BytesIO = _Sink() if live else io.BytesIO()
        options = {"flush_packets": "1", **dict(form.live)} if live else {}
        self._file = av.open(self._sink, "w", format=form.container, options=options)
        self._stream = self._file.add_stream(form.codec, rate=rate)
        self._stream.layout = "mono"
        if form.bit_rate:
            self._stream.bit_rate = form.bit_rate

    def write(self, samples: Samples) -> bytes:
        if len(samples):
            frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm16(samples), "<i2")[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = self._rate, self._count, Fraction(1, self._rate)
            self._count += len(samples)
            self._file.mux(self._stream.encode(frame))
        return self._sink.take() if isinstance(self._sink, _Sink) else b""

    def finish(self) -> bytes:
        if not self._count:
            self.write(np.zeros(1, np.float32))  # a container without a packet has no header
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._sink.take() if isinstance(self._sink, _Sink) else self._sink.getvalue()


def _nearest(rate: int, rates: tuple[int, ...]) -> int:
    """Return the rate itself, or the lowest possible one above it."""
    return rate if not rates else min((each for each in rates if each >= rate), default=rates[-1])


class _Resampled:
    """Another sample rate, by a filter that goes on from piece to piece: they together are the whole, resampled."""

    def __init__(self, inner: Encoder, rate: int, target: int) -> None:
        self._inner = inner
        self._stream = soxr.ResampleStream(rate, target, 1, dtype="float32")

    def write(self, samples: Samples) -> bytes:
        return self._inner.write(self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32)))

    def finish(self) -> bytes:
        rest = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return self._inner.write(rest) + self._inner.finish()


class _Stretched:
    """Another speed at the same pitch: FFmpeg's ``atempo``, twice for a speed below 0.5 or above 2.

    The filter keeps a part of its last window for itself: the end of the sound, mirrored, takes that place and is cut off.
    """

    def __init__(self, inner: Encoder, rate: int, speed: float) -> None:
        self._inner, self._rate, self._speed, self._count, self._sent = inner, rate, speed, 0, 0
        self._end = np.zeros(0, np.float32)
        graph = av.filter.Graph()
        first = last = graph.add_abuffer(sample_rate=rate, format="flt", layout="mono", time_base=Fraction(1, rate))
        steps = [speed] if 0.5 <= speed <= 2.0 else [math.sqrt(speed)] * 2  # beyond, the filter leaves samples out
        for step in steps:
            following = graph.add("atempo", f"{step:.6f}")
            last.link_to(following)
            last = following
        end = graph.add("abuffersink")
        last.link_to(end)
        graph.configure()
        self._graph, self._first, self._last = graph, first, end

    def write(self, samples: Samples) -> bytes:
        if not len(samples):
            return b""
        self._push(samples)
        self._end = np.concatenate([self._end, samples])[-self._rate // 10 :]
        return b"".join(self._inner.write(each) for each in self._ready())

    def _push(self, samples: Samples) -> None:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples, np.float32)[None], format="flt", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = self._rate, self._count, Fraction(1, self._rate)
        self._count += len(samples)
        self._first.push(frame)

    def finish(self) -> bytes:
        left = round(self._count / self._speed) - self._sent
        if left > 0:
            self._push(
                np.pad(self._end, (0, self._rate), mode="reflect" if len(self._end) > 1 else "edge")[len(self._end) :]
            )
        self._first.push(None)
        rest = np.concatenate([np.zeros(0, np.float32), *self._ready()])[: max(left, 0)]
        return self._inner.write(rest) + self._inner.finish()

    def _ready(self) -> list[Samples]:
        found = []
        while True:
            try:
                found.append(self._last.pull().to_ndarray().reshape(-1))
                self._sent += len(found[-1])
            except (av.error.BlockingIOError, av.error.EOFError):
                return found
