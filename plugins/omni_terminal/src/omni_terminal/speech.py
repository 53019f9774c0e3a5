"""Where the speech of a chat goes: numbered files, memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_core.client.wav import WavWriter


class NumberedFiles:
    """Names ``reply-1.wav``, ``reply-2.wav``, ... for ``reply.wav``. Numbers that are taken are left out."""

    def __init__(self, out: Path) -> None:
        self._names = _free(out)

    def next(self) -> Path:
        """Return the path of the next file."""
        return next(self._names)


def _free(out: Path) -> Iterator[Path]:
    number = 0
    while True:
        number += 1
        path = out.with_name(f"{out.stem}-{number}{out.suffix or '.wav'}")
        if not path.exists():
            yield path


class Kept:
    """The speech of the last reply, for ``/save``."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._rate = 0

    def write(self, samples: Any, sample_rate: int) -> None:
        """Keep samples."""
        self._pieces.append(samples)
        self._rate = sample_rate

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def save(self, path: Path) -> None:
        """Write a WAV file."""
        writer = WavWriter(path)
        try:
            for piece in self._pieces:
                writer.write(piece, self._rate)
        finally:
            writer.close()
