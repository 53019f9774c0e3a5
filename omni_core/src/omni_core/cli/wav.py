"""A writer of WAV files whose samples arrive in pieces, with the standard library only."""

from __future__ import annotations

import array
import sys
import wave
from collections.abc import Iterable
from pathlib import Path


class WavWriter:
    """A 16-bit mono PCM file. Its header holds the right length after :meth:`close`; players read an unfinished file too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: wave.Wave_write | None = None

    def write(self, samples: Iterable[float], sample_rate: int) -> None:
        """Append float samples in [-1, 1]; the first call decides the sample rate."""
        if self._file is None:
            self._file = wave.open(str(self.path), "wb")  # noqa: SIM115 - closed by close()
            self._file.setnchannels(1)
            self._file.setsampwidth(2)
            self._file.setframerate(sample_rate)
        values = samples.tolist() if hasattr(samples, "tolist") else samples
        pcm = array.array("h", (round(max(-1.0, min(1.0, value)) * 32767) for value in values))
        if sys.byteorder == "big":
            pcm.byteswap()
        self._file.writeframes(pcm.tobytes())

    def close(self) -> None:
        """Write the header's length. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
