"""The variation of turns: what the counts of a turn do not tell of its time, drawn again in a simulation."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import numpy as np

from omni_planner.profile import Costing, Seconds

DRAWS = 1021
"""Factors that are drawn for a stage; then they come again."""


def varied(costing: Costing, errors: Mapping[str, float], seed: str) -> Costing:
    """Return a costing that is as much off as the fit of the measured turns, with the same mean.

    Args:
        errors: by kind of request, the relative error of the fit. seed: of the factors; the same one, the same simulation.
    """
    factors = {kind: _factors(error, f"{seed} {kind}") for kind, error in errors.items() if error > 0.0}
    if not factors:
        return costing

    def seconds(kind: str, counts: Sequence[float]) -> Seconds:
        processor, device = costing(kind, counts)
        drawn = factors.get(kind)
        return (processor * next(drawn), device) if drawn is not None else (processor, device)

    return seconds


def _factors(error: float, seed: str) -> Iterator[float]:
    """Return factors of mean 1 and a standard deviation of ``error``, from a gamma distribution: none is negative."""
    shape = 1.0 / error**2
    drawn = np.random.default_rng(zlib.crc32(seed.encode())).gamma(shape, 1.0 / shape, DRAWS)
    factors: list[float] = (drawn / drawn.mean()).tolist()
    return cycle(factors)
