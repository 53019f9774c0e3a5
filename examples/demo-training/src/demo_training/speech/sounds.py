"""Makes training sounds: words in many synthetic voices, speeds and pitches, in noise."""

from __future__ import annotations

import numpy as np

from demo_training.speech.espeak import Samples, speak

RATE = 16_000
_ACCENTS = ("en-us", "en", "en-gb-x-rp", "en-gb-scotland")
_VARIANTS = ("", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+f1", "+f2", "+f3", "+f4")
TRAINED_VOICES = tuple(accent + variant for accent in _ACCENTS for variant in _VARIANTS)
HELD_OUT_VOICES = tuple(accent + variant for accent in _ACCENTS for variant in ("+m7", "+f5"))
"""Voices that are not used in training."""

_OTHER_WORDS = (
    "apple", "banana", "water", "window", "table", "seven", "eight", "under", "over", "never", "always", "paper",
    "pencil", "summer", "winter", "doctor", "teacher", "garden", "kitchen", "city", "river", "mountain", "happy",
    "little", "yellow", "purple", "orange", "tomorrow", "yesterday", "maybe", "please", "hello", "open", "close",
    "up", "down", "go", "snow", "step", "spot", "mosque", "magic", "musical", "best", "guess", "less",
    "yet", "this", "test", "nose", "note", "stock",
)  # fmt: skip


def say(
    word: str,
    random: np.random.Generator,
    voices: tuple[str, ...] = TRAINED_VOICES,
    speeds: tuple[int, int] = (120, 190),
    noise_db: float = 10,
) -> Samples:
    """Return a word at a random place in a little noise, mono at 16 kHz.

    Args:
        speeds: the slowest and the fastest, in words per minute.
        noise_db: the lowest signal-to-noise ratio.
    """
    speech = speak(
        word,
        voice=str(random.choice(voices)),
        speed=int(random.integers(*speeds, endpoint=True)),
        pitch=int(random.integers(25, 75)),
        span=int(random.integers(20, 80)),
        rate=RATE,
    )
    before, after = (np.zeros(int(random.uniform(0, 0.35) * RATE), np.float32) for _ in range(2))
    wave = np.concatenate([before, speech, after])
    ratio = 10 ** (random.uniform(noise_db, 40) / 20)
    noise = random.standard_normal(len(wave)) * float(np.sqrt(np.mean(speech**2))) / ratio
    return ((wave + noise) * random.uniform(0.2, 0.9)).astype(np.float32)


def something_else(random: np.random.Generator, voices: tuple[str, ...] = TRAINED_VOICES) -> Samples:
    """Return another word, noise, a tone, or near silence."""
    kind = random.random()
    if kind < 0.7:
        return say(str(random.choice(_OTHER_WORDS)), random, voices)
    length = int(random.uniform(0.3, 1.5) * RATE)
    noise = random.standard_normal(length)
    if kind < 0.8:
        noise += random.uniform(2, 20) * np.sin(2 * np.pi * random.uniform(80, 3000) / RATE * np.arange(length))
    return (noise * random.uniform(0.0005, 0.05)).astype(np.float32)
