"""A sentence on its way to sound, and its sound. Imports no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import field, frozen

Samples = np.ndarray[Any, np.dtype[np.float32]]


@frozen(eq=False)
class Sentence:
    """A piece of text as a network speaks it at once.

    Attributes:
        ids: of its phonemes, without those of the silence around them.
        style: the voice's vector for as many phonemes, float32 ``[256]``.
        speed: 1 is the voice's own.
        seed: of the noise.
    """

    ids: list[int]
    style: Samples
    speed: float = 1.0
    seed: int = 0


@frozen(eq=False)
class Spoken:
    """A spoken sentence.

    Attributes:
        samples: float32 ``[n]``.
        durations: units of 25 ms of every phoneme and of the silence on either side; empty where the network does not tell them.
    """

    samples: Samples
    durations: Any = field(factory=lambda: np.zeros(0, np.int64))
