"""A key of the clients in the session ``clients``, and a voice that the server's detector hears as one turn."""

from __future__ import annotations

import io
import wave

import numpy as np
import numpy.typing as npt

KEY = "a-key-of-clients"
RATE = 24_000


def voice(seconds: float) -> npt.NDArray[np.float32]:
    """Return half a second of silence, sound in syllables, and a second of silence."""
    moments = np.arange(int((seconds + 1.5) * RATE)) / RATE - 0.5
    voiced = (moments > 0) & (moments < seconds) & (moments % 0.2 < 0.15)
    return (0.3 * np.sin(1400 * moments) * voiced).astype(np.float32)


def pcm(samples: npt.NDArray[np.float32]) -> bytes:
    """Return 16-bit samples."""
    return (samples * 32767).astype("<i2").tobytes()


def recording() -> bytes:
    """Return the voice as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(RATE)
        made.writeframes(pcm(voice(0.8)))
    return file.getvalue()
