"""Decodes sound piece by piece, in bounded memory: of whole files, and of those of some formats while their bytes come."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import IO, Protocol

import av
import av.error
import numpy as np
import soxr

from omni_core.api import InvalidRequestError
from omni_media.containers import OPTIONS, TooManyPacketsError, decoded, opened, packets, stream_of
from omni_media.sound import Samples, SoundTrack
from omni_media.source import LIMITS, Limits, MediaSource

BEGIN_BYTES = 2**16
"""The first bytes of a file by which :func:`reads_forward` decides at the latest."""

_READ_BYTES = 4096
"""Bytes that FFmpeg waits for at once, and looks at before it decodes. It looks at 64 KiB of PCM in a WAV file."""

_FORWARD = re.compile(
    rb"(RIFF|RIFX|RF64|BW64)....WAVE|fLaC|ID3|OggS|\x1aE\xdf\xa3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]|\xff[\xf0\xf1\xf8\xf9]|#!AMR",
    re.DOTALL,
)
_BOXES = (b"ftyp", b"free", b"skip", b"wide", b"styp", b"sidx", b"uuid")
"""The boxes of MP4 that may come before the index, ``moov``."""


class Readable(Protocol):
    """A file, or anything that has bytes: ``read`` waits for some, at most ``size``, and returns none at the end."""

    def read(self, size: int, /) -> bytes: ...


def reads_forward(begin: bytes) -> bool | None:
    """Return whether a file can be decoded while it comes, by its first bytes; ``None``: more of them are needed.

    WAV, FLAC, MP3, Ogg, WebM and Matroska, ADTS, AMR can; MP4 whose index is at its beginning can, too.
    """
    if len(begin) < 12:
        return None
    if _FORWARD.match(begin):
        return True
    at = 0
    while begin[at + 4 : at + 8] in _BOXES:
        size = int.from_bytes(begin[at : at + 4], "big")
        if size < 8:
            return False
        at += size
    if at + 8 > len(begin) and at:
        return None if at < BEGIN_BYTES else False
    return begin[at + 4 : at + 8] == b"moov"


def forward_sound(file: Readable, limits: Limits = LIMITS, where: str = "") -> Iterator[tuple[Samples, int]]:
    """Decode a file of sound that is still coming, in the thread that iterates.

    Args:
        file: of a format that :func:`reads_forward`; it is read, and never sought in.
        limits: checked as the file is read and decoded.
        where: its place in the request, for messages.

    Yields:
        Samples, float32 ``[n]``, the average of the channels, and their rate in Hz, which is the same for all.

    Raises:
        InvalidRequestError: as :func:`omni_media.sound.sound`.
    """
    source = MediaSource("audio", {}, where)
    options = {**OPTIONS, "probesize": str(_READ_BYTES)}
    yield from _pieces(
        lambda: av.open(
            _Counted(file, source, limits), metadata_errors="replace", options=options, buffer_size=_READ_BYTES
        ),
        source,
        limits,
    )


def sound_pieces(file: IO[bytes], limits: Limits = LIMITS, where: str = "") -> Iterator[tuple[Samples, int]]:
    """Decode a whole file of sound, of any format, piece by piece: what :func:`forward_sound` yields and raises.

    Args:
        file: read and sought in; its size is not checked.
    """
    yield from _pieces(lambda: opened(file), MediaSource("audio", {}, where), limits)


def _pieces(
    open_file: Callable[[], av.container.InputContainer], source: MediaSource, limits: Limits
) -> Iterator[tuple[Samples, int]]:
    track, rate, resampler = SoundTrack(source, limits), 0, None
    try:
        with open_file() as container:
            best = stream_of(container, "audio")
            if best is None:
                raise source.fail("there is no sound in it")
            for packet in packets(container, best):
                for frame in decoded(packet):
                    samples = track.checked(frame)
                    if not rate:
                        rate = frame.sample_rate
                    if (
                        frame.sample_rate != rate or resampler is not None
                    ):  # what the header says is not what is decoded
                        resampler = _Resampler(rate) if resampler is None else resampler
                        samples = resampler.write(samples, frame.sample_rate)
                    if len(samples):
                        yield samples, rate
    except TooManyPacketsError:
        raise source.too_large("the file has too many packets; store it again") from None
    except InvalidRequestError:
        raise
    except av.error.FFmpegError as error:
        raise source.fail(f"not an audio file, or damaged: {error.strerror}") from error
    if resampler is not None and len(samples := resampler.flush()):
        yield samples, rate
    if not rate:
        raise source.fail("there is no sound in it, or it is damaged: 0 samples")


class _Counted:
    """A file whose size is checked as it is read."""

    def __init__(self, file: Readable, source: MediaSource, limits: Limits) -> None:
        self._file, self._source, self._limits = file, source, limits
        self._size = 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._size += len(data)
        most, name = self._limits.max_file_mb, self._limits.option("max_file_mb")
        if self._size > most * 2**20:
            raise self._source.too_large(f"more than {most} MiB, the limit ({name})")
        return data


class _Resampler:
    """Brings runs of samples, each of a rate of its own, to one rate."""

    def __init__(self, rate: int) -> None:
        self._rate, self._own = rate, rate
        self._stream: soxr.ResampleStream | None = None

    def write(self, samples: Samples, own: int) -> Samples:
        """Return the samples that are ready."""
        rest = self.flush() if own != self._own else np.zeros(0, np.float32)
        if own != self._own:
            self._own = own
            self._stream = soxr.ResampleStream(own, self._rate, 1, dtype="float32") if own != self._rate else None
        made: Samples = samples if self._stream is None else self._stream.resample_chunk(samples)
        return np.concatenate([rest, made])

    def flush(self) -> Samples:
        """Return the end of a run."""
        rest = np.zeros(0, np.float32)
        return rest if self._stream is None else self._stream.resample_chunk(rest, last=True)
