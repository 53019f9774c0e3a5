"""Clicks at the borders of pieces: jumps that the sound within the pieces does not have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from omni_serve.audit.subject import Samples

WINDOW = 480
"""Samples on either side that a border is compared with: 20 ms at 24 kHz."""

_TIMES = 4.0
_FLOOR = 0.02


@frozen
class Click:
    """A jump at a border. ``position`` is in samples; ``jump`` and ``usual``, the greatest around it, are of full scale."""

    position: int
    jump: float
    usual: float


def clicks(pieces: Sequence[Samples]) -> list[Click]:
    """Return the borders at which the sound jumps.

    A jump is the distance of a sample from the straight line through the two before it. A border clicks if its jump is above 4 times the
    greatest within 20 ms around it, above 99.9 % of all jumps inside pieces, and above 0.02.
    """
    pieces = [each for each in pieces if len(each)]
    if len(pieces) < 2:
        return []
    sound = np.concatenate(pieces)
    jumps = np.zeros(len(sound), np.float32)
    jumps[2:] = np.abs(sound[2:] - 2 * sound[1:-1] + sound[:-2])
    borders = np.cumsum([len(each) for each in pieces])[:-1]
    inside = np.ones(len(sound), bool)
    for offset in (0, 1):
        inside[np.minimum(borders + offset, len(sound) - 1)] = False
    within = jumps[inside]
    general = float(np.quantile(within, 0.999)) if len(within) else 0.0
    found = []
    for border in borders.tolist():
        jump = float(jumps[border : border + 2].max())
        around = slice(max(0, border - WINDOW), border + WINDOW)
        near = jumps[around][inside[around]]
        usual = float(near.max()) if len(near) else 0.0
        if jump > max(_FLOOR, general, _TIMES * usual):
            found.append(Click(border, jump, usual))
    return found
