"""A key of the clients in the session ``clients``, a voice that the server's detector hears as one turn, and programs of a page."""

from __future__ import annotations

import io
import re
import wave
from pathlib import Path
from typing import Any

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


def program(client: str, address: str) -> dict[str, Any]:
    """Return the names of a client's program in docs/voice-agents.md, for a server over the pipeline ``tones`` at HOST:PORT."""
    page = (Path(__file__).parents[2] / "docs/voice-agents.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page.partition(f"\n## {client}\n")[2].partition("\n## ")[0], re.DOTALL)
    for name, value in {"127.0.0.1:8000": address, '"none"': repr(KEY), "model=assistant": "model=tones"}.items():
        assert name in code or name == "model=assistant"
        code = code.replace(name, value)
    names: dict[str, Any] = {"__name__": client}
    exec(code.replace('"assistant"', '"tones"'), names)
    return names
