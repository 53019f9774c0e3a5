"""Sentences that are spoken and written down again, and how wrong that is."""

from __future__ import annotations

import re
import wave
from io import BytesIO

import numpy as np
import soxr

SENTENCES = [
    "The old bridge was closed for repairs during the winter.",
    "Please send the report to both of us before Friday evening.",
    "A small dog slept under the kitchen table.",
    "Nobody in the village remembered the name of the river.",
    "She bought three apples, two pears and a loaf of bread.",
    "The train to the coast leaves at seven in the morning.",
    "He painted the garden fence dark green.",
    "We could hear the rain on the roof all night.",
    "The doctor asked him to rest for a week.",
    "My sister plays the piano in a large orchestra.",
    "There is a letter for you on the desk.",
    "The children built a castle of sand near the water.",
    "Turn left at the church and walk up the hill.",
    "It takes twenty minutes to boil a dozen potatoes.",
    "The museum opens its new rooms next month.",
    "They sold their house and moved to the city.",
    "A cold wind blew across the empty field.",
    "The teacher explained the problem a second time.",
    "Her brother works as an engineer in the north.",
    "The moon rose slowly above the dark forest.",
]


def words(text: str) -> list[str]:
    """Return the words of a text, without case and marks."""
    return re.findall(r"[a-z0-9']+", text.lower())


def errors(said: list[str], heard: list[str]) -> int:
    """Return the edit distance of two lists of words."""
    row = np.arange(len(heard) + 1)
    for number, word in enumerate(said, 1):
        last, row = row, np.full(len(heard) + 1, number)
        for place, other in enumerate(heard, 1):
            row[place] = min(last[place] + 1, row[place - 1] + 1, last[place - 1] + (word != other))
    return int(row[-1])


def resampled(sound: bytes, rate: int) -> np.ndarray:
    """Return 16-bit PCM as samples ``[n]`` at 16 kHz, as recognisers take them."""
    samples = np.frombuffer(sound, np.int16).astype(np.float32) / 32768
    return np.asarray(soxr.resample(samples, rate, 16_000), np.float32)


def wav(samples: np.ndarray, rate: int) -> bytes:
    """Return a WAV file of float samples ``[n]``."""
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, rate, 0, "NONE", ""))
        writer.writeframes((samples.clip(-1, 1) * 32767).astype(np.int16).tobytes())
    return file.getvalue()
