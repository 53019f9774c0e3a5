"""Speech in a file whose suffix says its format: WAV by the standard library, the others by PyAV; samples may arrive in pieces."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from omni_cli.request.out import ENCODED, WAV_SUFFIXES
from omni_cli.request.wav import WavWriter
from omni_core.runtime_api import pcm16


def sound_writer(path: Path) -> WavWriter | EncodedWriter:
    """Return what writes speech to ``path``; its suffix, in any case, is one of :data:`WAV_SUFFIXES` and :data:`ENCODED`."""
    suffix = path.suffix.lower()
    return WavWriter(path) if suffix in WAV_SUFFIXES else EncodedWriter(path, *ENCODED[suffix])


class EncodedWriter:
    """Writes a mono file of one of FFmpeg's formats. A sample rate that the codec does not take becomes the next one above it."""

    def __init__(self, path: Path, container: str, codec: str) -> None:
        self._path, self._container, self._codec = path, container, codec
        self._file: Any = None
        self._count = 0

    def write(self, samples: Any, sample_rate: int) -> None:
        """Append float samples in [-1, 1], an array or a list; the first call decides the sample rate."""
        import av  # check_out has looked for it
        import numpy as np

        if self._file is None:
            rates = av.Codec(self._codec, "w").audio_rates or [sample_rate]
            rate = min((each for each in rates if each >= sample_rate), default=max(rates))
            self._file = av.open(str(self._path), "w", format=self._container)
            self._stream = self._file.add_stream(self._codec, rate=rate, layout="mono")
        sound = np.frombuffer(pcm16(samples), "<i2")[None]
        if sound.size:
            frame = av.AudioFrame.from_ndarray(sound, format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = sample_rate, self._count, Fraction(1, sample_rate)
            self._count += sound.size
            self._file.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write the rest of the sound and the header's length. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            if self._count:
                file.mux(self._stream.encode(None))
            file.close()
