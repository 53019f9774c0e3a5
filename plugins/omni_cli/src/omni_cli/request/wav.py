"""WAV files, 16-bit mono PCM, with the standard library only; samples may arrive in pieces."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from omni_core.runtime_api import pcm16

_UNKNOWN = 0x7FFFF000
"""Bytes of sound in the header of a file whose length is not known yet. Players read until the end."""


class WavWriter:
    """Writes a file, or an open binary stream, which stays open. The header has the right length after :meth:`close`, and a very
    large one until then and where the stream is a pipe.
    """

    def __init__(self, target: Path | IO[bytes]) -> None:
        self._target = target
        self._file: IO[bytes] | None = None
        self._bytes = 0
        self._rate = 0

    def write(self, samples: Any, sample_rate: int) -> None:
        """Append float samples in [-1, 1], an array or a list; the first call decides the sample rate."""
        sound = pcm16(samples)
        with self._named_errors():
            if self._file is None:
                self._rate = sample_rate
                self._file = self._target.open("wb") if isinstance(self._target, Path) else self._target
                self._file.write(self._header(_UNKNOWN))
            self._file.write(sound)
            self._file.flush()
        self._bytes += len(sound)

    def close(self) -> None:
        """Write the header's length. Idempotent."""
        file, self._file = self._file, None
        if file is None:
            return
        with self._named_errors():
            if file.seekable():
                file.seek(-self._bytes - 44, os.SEEK_CUR)
                file.write(self._header(self._bytes))
                file.seek(self._bytes, os.SEEK_CUR)
            if file is self._target:
                file.flush()
            else:
                file.close()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Name the file in errors of writing it, such as that of a full disk."""
        try:
            yield
        except OSError as error:
            if isinstance(self._target, Path):
                error.filename = str(self._target)
            raise

    def _header(self, size: int) -> bytes:
        form = (b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, self._rate, 2 * self._rate, 2, 16, b"data", size)
        return struct.pack("<4sI4s4sIHHIIHH4sI", *form)
