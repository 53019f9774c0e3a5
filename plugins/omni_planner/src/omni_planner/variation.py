"""Variation, measured in a calibration and drawn again in a simulation: of turns, what their counts do not tell of their time, and of the
machine's speed.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle

import numpy as np

from omni_planner.profile import Costing, Seconds, StageProfile, observed
from omni_planner.trace import Turn, Window

DRAWS = 1021
"""Factors that are drawn for a stage; then they come again."""

BITS = 6
"""Bits of the number of a second: each of 63 has a speed of its own, then they come again."""

PIECE = 0.1
"""Seconds of a recorded closed loop of which the turns are compared with those of its other pieces."""

LEAST_TURNS = 4.0
"""Turns of equal length that would tell as much of its speed as such a piece has at least."""


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


def slowness(drift: float) -> list[float]:
    """Return by how much longer a piece of work takes in each second of a machine whose speed has this relative standard deviation: from a
    log-normal distribution of mean 1, in an order that begins with its median and in which any few are spread over all of it (van der
    Corput, 1935). Empty: its speed is constant.
    """
    if not drift:
        return []
    normal = statistics.NormalDist(-drift * drift / 2.0, drift)
    shares = [int(f"{number:0{BITS}b}"[::-1], 2) / 2**BITS for number in range(1, 2**BITS)]
    return [math.exp(normal.inv_cdf(share)) for share in shares]


def drift_of(turns: Iterable[Turn], windows: Iterable[Window], stages: Mapping[str, StageProfile]) -> float:
    """Return the relative standard deviation of a machine's speed, of pieces of :data:`PIECE` of a closed loop: by how much their turns
    take longer or shorter than their fitted costs, beyond what their independent errors explain. 0 where nothing tells.
    """
    turns = list(turns)
    squares = independent = 0.0
    free = 0
    for window in windows:
        made: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for turn in turns if not window.alone else ():
            if window.begin <= turn.begin < window.end:
                stage = stages[turn.stage]
                counted, costs = observed(stage.kind, turn.counts), stage.cost(window.kind).coefficients()
                expected = sum(costs[name] * counted.get(name, 0.0) for name in costs)
                made[int((turn.begin - window.begin) / 1e6 / PIECE)].append((turn.seconds, expected))
        found = [_ratio(each) for each in made.values() if _turns(each) >= LEAST_TURNS]
        if len(found) > 1:
            free += len(found) - 1
            squares += statistics.variance(ratio for ratio, _ in found) * (len(found) - 1)
            independent += statistics.fmean(error for _, error in found) * (len(found) - 1)
    return math.sqrt(max(0.0, squares - independent) / free) if free else 0.0


def _turns(turns: Sequence[tuple[float, float]]) -> float:
    """Return how many turns of equal length would tell as much as these: one that takes most of the time tells its own error only."""
    squares = sum(one * one for _, one in turns)
    return sum(one for _, one in turns) ** 2 / squares if squares else 0.0


def _ratio(turns: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the seconds of turns over the expected ones, and the variance that their independent errors give it."""
    expected, count = sum(one for _, one in turns), _turns(turns)
    ratio = sum(seconds for seconds, _ in turns) / expected
    errors = sum((seconds - ratio * one) ** 2 for seconds, one in turns) / expected**2
    return ratio, errors * count / (count - 1.0)
