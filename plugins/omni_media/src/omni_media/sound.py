"""Decodes sound of any format, rate and channel count with PyAV; soxr resamples it, channels are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import av
import av.error
import numpy as np
import numpy.typing as npt
import soxr
from attrs import define, field

from omni_media.containers import TooManyPacketsError, decoded, opened, packets, stream_of
from omni_media.source import LIMITS, Limits, MediaSource, source_of

Samples = npt.NDArray[np.float32]

LOUDEST = 2.0**15
"""The largest sample that is read. Sound is within 1; some writers leave 16-bit values in floats."""


def sound(part: Mapping[str, Any] | MediaSource, rate: int, limits: Limits = LIMITS) -> Samples:
    """Decode the sound of a content part, or the sound track of a video.

    Its length is that of what is decoded, whatever the file says.

    Args:
        part: ``path``, ``data`` (the bytes of a file), or ``samples`` (``[n]`` or ``[n, channels]``, float in [-1, 1]) with
            ``sample_rate`` in Hz.
        rate: of the result, in Hz.
        limits: checked as the file is decoded.

    Returns:
        float32 ``[n]``, the average of the channels.

    Raises:
        InvalidRequestError: no sound, damaged, empty, not finite, beyond :data:`LOUDEST`, or over a limit
            (RequestTooLargeError); the message names the part.
    """
    source = source_of(part, "audio")
    track = SoundTrack(source, limits)
    if source.part.get("samples") is not None:
        track.add_samples(*given_samples(source))
        return track.resampled(rate)
    try:
        with source.open(limits) as stream, opened(stream) as container:
            best = stream_of(container, "audio")
            if best is None:
                raise source.fail("there is no sound in it")
            for packet in packets(container, best):
                for frame in decoded(packet):
                    track.add(frame)
    except av.error.FFmpegError as error:
        raise source.fail(f"not an audio file, or damaged: {error.strerror}") from error
    except TooManyPacketsError:
        raise source.too_large("the file has too many packets; store it again") from None
    return track.resampled(rate)


def given_samples(source: MediaSource) -> tuple[Samples, int]:
    """Return the samples of a part, and their rate in Hz.

    Raises:
        InvalidRequestError: they have no rate, or another shape.
    """
    rate = source.part.get("sample_rate")
    if isinstance(rate, bool) or not isinstance(rate, int) or rate <= 0:
        raise source.fail("`samples` need a `sample_rate` in Hz")
    samples = np.asarray(source.part["samples"], dtype=np.float32)
    if samples.ndim not in (1, 2):
        raise source.fail(f"`samples` must be [n] or [n, channels], have shape {list(samples.shape)}")
    return samples, rate


@define
class SoundTrack:
    """Collects decoded sound, one channel of each piece: a file of many channels is small where they are silent.

    Attributes:
        start: of the first piece, in seconds on the file's clock.
    """

    _source: MediaSource
    _limits: Limits
    start: float | None = None
    _counts: dict[int, int] = field(factory=dict)
    _runs: list[tuple[int, list[Samples]]] = field(factory=list)

    @property
    def seconds(self) -> float:
        """Return the length of all pieces."""
        return sum(count / rate for rate, count in self._counts.items())

    def add(self, frame: Any) -> None:
        """Add a decoded piece. Raises InvalidRequestError: it is no sound, or over a limit (RequestTooLargeError)."""
        if self.start is None:
            self.start = float(frame.time or 0.0)
        self._add(_floats(frame), frame.sample_rate)

    def checked(self, frame: Any) -> Samples:
        """Count a decoded piece that is kept nowhere, and return its one channel. Raises as :meth:`add`."""
        return self._counted(_floats(frame), frame.sample_rate)

    def add_samples(self, samples: Samples, rate: int) -> None:
        """Add samples ``[n]`` or ``[n, channels]``. Raises as :meth:`add`."""
        self._add(samples, rate)

    def _add(self, samples: Samples, rate: int) -> None:
        mono = self._counted(samples, rate)
        if not self._runs or self._runs[-1][0] != rate:  # what the header says of the rate is not what is decoded
            self._runs.append((rate, []))
        self._runs[-1][1].append(mono)

    def _counted(self, samples: Samples, rate: int) -> Samples:
        wrong = ~(np.abs(samples) <= LOUDEST)  # NaN too
        if wrong.any():
            at, value = self.seconds + np.argwhere(wrong)[0][0] / rate, samples[wrong][0]
            raise self._source.fail(
                f"the sample at {at:.3f} s is {value:g}; samples must be from -1 to 1, and are read up to {LOUDEST:g}"
            )
        self._counts[rate] = self._counts.get(rate, 0) + len(samples)
        self.check_length(self.seconds)
        self._source.spend("request_samples", samples.size, self._limits)
        return samples.mean(axis=1, dtype=np.float32) if samples.ndim == 2 else samples

    def check_length(self, seconds: float) -> None:
        """Raise RequestTooLargeError if so many seconds are over the limit."""
        limit, name = self._limits.max_audio_seconds, self._limits.option("max_audio_seconds")
        if seconds > limit:
            raise self._source.too_large(
                f"{seconds:.1f} s of sound and more are over the limit of {limit:g} s ({name})"
            )

    def resampled(self, rate: int) -> Samples:
        """Return all of it at ``rate`` Hz.

        Raises:
            InvalidRequestError: there is none.
        """
        runs = [(own, np.concatenate(pieces)) for own, pieces in self._runs]
        if not sum(len(samples) for _, samples in runs):
            raise self._source.fail("there is no sound in it, or it is damaged: 0 samples")
        made = [each if own == rate else soxr.resample(each, own, rate, quality="HQ") for own, each in runs]
        return np.ascontiguousarray(made[0] if len(made) == 1 else np.concatenate(made), dtype=np.float32)


_TYPES = {"u8": np.uint8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "flt": np.float32, "dbl": np.float64}


def _floats(frame: av.AudioFrame) -> Samples:
    """Return a decoded piece of sound as float32 ``[n, channels]``.

    The planes are counted by the layout: PyAV lists more than there are where a frame has eight or more, and ``to_ndarray`` reads them.
    """
    channels, kind = frame.layout.nb_channels, np.dtype(_TYPES[frame.format.packed.name])
    if frame.format.is_planar:
        rows = [np.frombuffer(plane, kind, frame.samples) for plane in frame.planes[:channels]]
        samples = np.stack(rows, axis=1)
    else:
        samples = np.frombuffer(frame.planes[0], kind, frame.samples * channels).reshape(-1, channels)
    if kind.kind == "i":
        return samples.astype(np.float32) / np.float32(2.0 ** (8 * kind.itemsize - 1))
    if kind.kind == "u":
        return (samples.astype(np.float32) - 128.0) / 128.0
    with np.errstate(over="ignore"):  # it becomes infinite
        return samples.astype(np.float32)
