"""WAV files, 16-bit mono PCM, with the standard library only; samples may arrive in pieces."""

from __future__ import annotations

import array
import sys
import wave
from pathlib import Path
from typing import IO, Any


class WavWriter:
    """Writes a file, or an open binary stream, which stays open. The header holds the right length after :meth:`close`; players read
    an unfinished file too.
    """

    def __init__(self, target: Path | IO[bytes]) -> None:
        self._target = str(target) if isinstance(target, Path) else target
        self._file: wave.Wave_write | None = None

    def write(self, samples: Any, sample_rate: int) -> None:
        """Append float samples in [-1, 1], an array or a list; the first call decides the sample rate."""
        if self._file is None:
            self._file = wave.open(self._target, "wb")  # noqa: SIM115 - closed by close()
            self._file.setnchannels(1)
            self._file.setsampwidth(2)
            self._file.setframerate(sample_rate)
        self._file.writeframes(pcm16(samples))

    def close(self) -> None:
        """Write the header's length. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


def pcm16(samples: Any) -> bytes:
    """Return float samples in [-1, 1] as 16-bit little-endian integers. NumPy arrays take a shorter way than lists."""
    if hasattr(samples, "astype"):
        scaled: bytes = (samples.clip(-1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()
        return scaled
    values = samples.tolist() if hasattr(samples, "tolist") else samples
    pcm = array.array("h", (round(max(-1.0, min(1.0, value)) * 32767) for value in values))
    if sys.byteorder == "big":
        pcm.byteswap()
    return pcm.tobytes()
