"""The inputs of the reference implementation and of ours in the tests. Plain data and numpy, because the reference side
imports it too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SHAPES = "abc"
FRAMES = 16
"""Frames that the codec decodes, and encodes again, in the golden comparison."""

REFERENCE_TEXT = "This is what the voice sounds like."

TWO_SPEAKERS = (
    "<|speaker:0|>Good morning, how was the sea?<|speaker:1|>Loud and blue, as always."
    "<|speaker:0|>And the fox?<|speaker:1|>It slept in the red house."
)

CASES: dict[str, dict[str, Any]] = {
    "plain": {"text": "Tell me a story about a red fox."},
    "other": {"text": "The sound of the sea, again and again!", "max_new_tokens": 24},
    "unicode": {"text": "Grüße, 世界 🦊!", "max_new_tokens": 16},
    "cloned": {"text": "Once upon a time there was a blue house.", "voices": 1},
    "two voices": {"text": TWO_SPEAKERS, "voices": 2, "segment_bytes": 512, "max_new_tokens": 32},
    "turns": {"text": TWO_SPEAKERS, "segment_bytes": 90, "max_new_tokens": 14},
}
"""By name. ``voices``: how many reference voices; ``segment_bytes``: the longest part spoken in one go."""

SAMPLED: dict[str, dict[str, Any]] = {
    "default": {"seed": 7},
    "hot": {"seed": 8, "temperature": 1.4, "top_p": 0.95, "top_k": 60},
    "cold": {"seed": 9, "temperature": 0.5, "top_p": 0.6, "top_k": 10},
}
"""Sampling parameters; each is used with every case of :data:`SAMPLED_CASES`."""

SAMPLED_CASES = ("plain", "cloned", "turns")

MAX_NEW_TOKENS = 40


def frames(seed: int, count: int, semantic: int, residual: int, codebooks: int) -> np.ndarray:
    """Random frames ``[count, codebooks]``, int64."""
    numbers = np.random.default_rng(seed)
    first = numbers.integers(0, semantic, (count, 1))
    return np.concatenate([first, numbers.integers(0, residual, (count, codebooks - 1))], axis=1)


def voices(count: int, semantic: int, codebooks: int) -> list[np.ndarray]:
    """Return the frames of a number of reference voices."""
    return [frames(10 + index, 12 + 5 * index, semantic, 64, codebooks) for index in range(count)]


def sound(count: int) -> np.ndarray:
    """Return an input for the encoder: two gliding tones and noise, ``[count]`` float32 at 44.1 kHz."""
    time = np.arange(count) / 44_100
    noise = np.random.default_rng(5).standard_normal(count)
    wave = (
        0.3 * np.sin(2 * np.pi * (200 + 300 * time) * time) + 0.2 * np.sin(2 * np.pi * 1_500 * time**1.5) + 0.05 * noise
    )
    return wave.astype(np.float32)
