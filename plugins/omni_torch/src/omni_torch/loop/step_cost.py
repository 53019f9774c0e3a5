"""The seconds of a step as a linear function of what it computes, learnt while steps are made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FORGETS = 0.98
"""The weight of a step after each later one: the last fifty count for most of the fit."""

_EACH, _EVERY = 8, 8
"""The fit is made anew after each of the first steps, then after every eighth one."""


class StepCost:
    """Predict the seconds of a step from counts of its work, by least squares over the last steps.

    It predicts nothing before the first step. No coefficient is negative.

    Args:
        counts: how many numbers describe a step, such as its rows and its positions.
        ridge: pulls the cost of a count to 0 unless the squares of that count, over the steps that are remembered, sum up to more.
    """

    def __init__(self, counts: int, ridge: float = 0.0) -> None:
        size = counts + 1
        self._ridge = np.array([0.0, *[ridge] * counts])
        self._gram, self._moment = np.zeros((size, size)), np.zeros(size)
        self._steps = 0
        self._coefficients: list[float] | None = [0.0] * size

    def observe(self, counts: Sequence[float], seconds: float) -> None:
        """Learn from a step."""
        values = np.array([1.0, *counts])
        self._gram = _FORGETS * self._gram + values[:, None] * values
        self._moment = _FORGETS * self._moment + values * seconds
        self._steps += 1
        if self._steps <= _EACH or self._steps % _EVERY == 0:
            self._coefficients = None

    def seconds(self, *counts: float) -> float:
        """Predict a step."""
        coefficients = self._coefficients or self.coefficients()
        found = coefficients[0]
        for index, count in enumerate(counts, 1):
            found += coefficients[index] * count
        return found

    def coefficients(self) -> list[float]:
        """Return the seconds of any step, and of one of each count."""
        if self._coefficients is None:
            self._coefficients = self._fit()
        return self._coefficients

    def _fit(self) -> list[float]:
        """Return the coefficients: those that come out negative are left out one after the other."""
        used = [index for index in range(len(self._moment)) if self._gram[index, index] > 0]
        found = np.zeros(len(self._moment))
        while used:
            gram = self._gram[np.ix_(used, used)]
            scale = np.diag(1e-6 * np.diag(gram) + self._ridge[used])  # counts that never differ share the time
            solution = np.linalg.solve(gram + scale, self._moment[used])
            if solution.min() >= 0:
                found[used] = solution
                break
            del used[int(solution.argmin())]
        values: list[float] = found.tolist()
        return values
