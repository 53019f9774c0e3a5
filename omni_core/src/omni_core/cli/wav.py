"""A writer of WAV files whose samples arrive in pieces, with the standard library only."""

from __future__ import annotations

import array
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

_UNKNOWN = 0x7FFFF000
"""Bytes of sound in the header of a file whose length is not known yet. Players read until the end."""


class WavWriter:
    """A 16-bit mono PCM file, begun by the first samples. Its header has the right length after :meth:`close`, and a very large one
    until then and where the file is a pipe.

    Args:
        target: a path, or an open file that :meth:`close` leaves open.
    """

    def __init__(self, target: Path | BinaryIO) -> None:
        self._target = target
        self._file: BinaryIO | None = None
        self._bytes = 0
        self._rate = 0

    def write(self, samples: Iterable[float], sample_rate: int) -> None:
        """Append float samples in [-1, 1]; the first call decides the sample rate."""
        if self._file is None:
            self._rate = sample_rate
            self._file = self._target.open("wb") if isinstance(self._target, Path) else self._target
            self._file.write(self._header(_UNKNOWN))
        values = samples.tolist() if hasattr(samples, "tolist") else samples
        pcm = array.array("h", (round(max(-1.0, min(1.0, value)) * 32767) for value in values))
        if sys.byteorder == "big":
            pcm.byteswap()
        self._file.write(pcm.tobytes())
        self._file.flush()
        self._bytes += 2 * len(pcm)

    def close(self) -> None:
        """Write the header's length. Idempotent."""
        file, self._file = self._file, None
        if file is None:
            return
        if file.seekable():
            file.seek(-self._bytes - 44, os.SEEK_CUR)
            file.write(self._header(self._bytes))
            file.seek(self._bytes, os.SEEK_CUR)
        if file is self._target:
            file.flush()
        else:
            file.close()

    def _header(self, size: int) -> bytes:
        form = (b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, self._rate, 2 * self._rate, 2, 16, b"data", size)
        return struct.pack("<4sI4s4sIHHIIHH4sI", *form)
