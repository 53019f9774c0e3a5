"""The likeliest frames of tokens whose order is known, by the scores of a CTC model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.floating[Any]]

MOST_CELLS = 100_000_000
"""Frames times states, of which each takes a byte: five minutes of sound with what is said in them."""

_LEAST = -1e6
"""A score of minus infinity, or none, counts as this."""


def aligned(scores: Scores, tokens: Sequence[int], blank: int) -> list[tuple[int, int]] | None:
    """Return the frames of each token, the first and the one behind its last, in the path with the highest sum of scores.

    A path has in each frame a token or the blank; without repetitions and blanks it is ``tokens``. So between two equal tokens there is
    a blank.

    Args:
        scores: the logarithms of probabilities, ``[frames, vocabulary]``.

    Returns:
        ``None`` where there are too few frames for the tokens, or more than :data:`MOST_CELLS` to compare.
    """
    labels = np.full(2 * len(tokens) + 1, blank)
    labels[1::2] = tokens
    if not tokens:
        return []
    if not len(scores) or len(scores) * len(labels) > MOST_CELLS:
        return None
    skips = np.zeros(len(labels), bool)  # the blank before a token that is another than the one before
    skips[3::2] = labels[3::2] != labels[1:-2:2]
    moves = np.zeros((len(scores), len(labels)), np.int8)
    heard = np.maximum(np.nan_to_num(scores.astype(np.float64), nan=_LEAST, neginf=_LEAST), _LEAST)
    best = np.full(len(labels), -np.inf)
    best[:2] = heard[0][labels[:2]]
    for frame in range(1, len(scores)):
        sums, move = best.copy(), moves[frame]
        for step, before in ((1, best[:-1]), (2, np.where(skips[2:], best[:-2], -np.inf))):
            np.copyto(move[step:], step, where=before > sums[step:])
            np.maximum(sums[step:], before, out=sums[step:])
        best = sums + heard[frame][labels]
    state = len(labels) - 1 if best[-1] > best[-2] else len(labels) - 2
    if best[state] == -np.inf:
        return None
    begins, ends = [0] * len(tokens), [0] * len(tokens)
    for frame in range(len(scores) - 1, -1, -1):
        if state % 2:
            begins[state // 2] = frame
            ends[state // 2] = max(ends[state // 2], frame + 1)
        state -= int(moves[frame, state])
    return [*zip(begins, ends, strict=True)]
