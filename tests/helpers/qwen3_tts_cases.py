"""The requests of which the reference has said what comes of them. Imports no package of ours: the reference's environment has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = {"": "custom_voice", "base-": "base", "design-": "voice_design"}
SHAPES = [f"{prefix}{name}" for prefix in KINDS for name in "abc"]
"""Names of tiny checkpoints: three of each kind."""

GREEDY: dict[str, Any] = {
    "do_sample": False,
    "subtalker_dosample": False,
    "repetition_penalty": 1.05,
    "max_new_tokens": 24,
}
"""The reference's settings of every case."""

DECODED = 1500
"""Samples that are kept of each sound: the first of a speech, the last of given codes."""

DRAWS = 1000
"""Frames that are sampled, by the reference and by ours."""

DRAWN: dict[str, Any] = {
    "temperature": 2.5,
    "top_k": 9,
    "top_p": 0.95,
    "subtalker_temperature": 2.0,
    "subtalker_top_k": 7,
    "subtalker_top_p": 0.9,
    "repetition_penalty": 1.05,
}
"""The settings of these."""


@dataclass(frozen=True)
class Case:
    """A request.

    Attributes:
        recording: the number of the recording of the voice; ``words``: said in it, if they are known.
    """

    kind: str
    text: str
    language: str = "auto"
    speaker: str | None = None
    style: str = ""
    recording: int = 0
    words: str | None = None
    dual_track: bool = False


LONG = "Tell me a story about a red fox, a blue house and the sound of the sea; then about 12 ships!"


def cases_of(shape: str) -> list[Case]:
    """Return the cases of a checkpoint."""
    if shape.startswith("base"):
        return [
            Case("base", "Tell me a story.", recording=1, dual_track=True),
            Case("base", "What do you hear?", "english", recording=1, words="A red fox.", dual_track=True),
            Case("base", "Hi.", "german", recording=2, words="You are a friendly voice.", dual_track=True),
            Case("base", LONG, recording=2, words="A red fox.", dual_track=True),
            Case("base", "What do you hear?", "english", recording=1, words="A red fox."),
            Case("base", "What do you hear?", recording=2),
        ]
    if shape.startswith("design"):
        return [
            Case("voice_design", "Tell me a story.", "english", style="A friendly voice."),
            Case("voice_design", "你好，世界。", "chinese"),
            Case("voice_design", LONG, style="slow, like the sea", dual_track=True),
        ]
    styled = "" if shape == "c" else "Very friendly."
    return [
        Case("custom_voice", "Tell me a story.", speaker="ryan", style=styled),
        Case("custom_voice", LONG, "english", "Serena", dual_track=True),
        Case("custom_voice", "What is in the picture?", "auto", "dylan"),  # a dialect
        Case("custom_voice", "What is in the picture?", "chinese", "dylan", style=styled, dual_track=True),
        Case("custom_voice", "What is in the picture?", "german", "dylan"),
    ]


def recording(number: int) -> np.ndarray:
    """Return a short sound of 24 kHz."""
    numbers = np.random.default_rng(number)
    seconds = np.arange(2400 + 700 * number) / 24_000
    tones = [np.sin(2 * np.pi * pitch * seconds) for pitch in numbers.uniform(100, 4000, 5)]
    return (0.1 * sum(tones) + 0.01 * numbers.standard_normal(len(seconds))).astype(np.float32)


def codes_to_decode(groups: int) -> np.ndarray:
    """Return ``[frames, groups]`` int64 codes, more than the decoder's window."""
    return np.random.default_rng(groups).integers(0, 32, (30, groups))
