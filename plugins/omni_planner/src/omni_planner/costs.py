"""The processor time of a turn as a linear function of what it did, fitted by least squares from sums that can be added."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import define, field

Counts = Mapping[str, float]
"""The counts of a turn by the name of the feature: ``turns``, ``rows``, ``positions``, ``frames``, ``taken`` ..."""


@define
class Cost:
    """Processor seconds of a turn: a sum of what it did, each times a coefficient that is not negative.

    Only sums over the observed turns are kept, so two profiles are merged by adding them and no single turn is stored.

    Attributes:
        features: names, in the order of the sums. turns: the number of observed turns.
        gram: ``[features][features]``, sums of products of the counts. moment: ``[features]``, sums of counts times seconds.
        square: the sum of squared seconds.
    """

    features: list[str]
    turns: int
    gram: list[list[float]]
    moment: list[float]
    square: float
    _found: list[float] | None = field(default=None, init=False, eq=False, repr=False)
    """The coefficients, until another turn is added: placements are simulated by the hundred with one profile."""

    @classmethod
    def over(cls, features: list[str]) -> Cost:
        """Make an empty one."""
        size = len(features)
        return cls(list(features), 0, [[0.0] * size for _ in range(size)], [0.0] * size, 0.0)

    def observe(self, counts: Counts, seconds: float) -> None:
        """Add a turn."""
        self._found = None
        values = [counts.get(name, 0.0) for name in self.features]
        self.turns += 1
        self.square += seconds * seconds
        for row, value in enumerate(values):
            self.moment[row] += value * seconds
            for column, other in enumerate(values):
                self.gram[row][column] += value * other

    def merge(self, other: Cost) -> None:
        """Add the turns of another.

        Raises:
            ValueError: it counts other features.
        """
        if self.features != other.features:
            raise ValueError(f"costs over {self.features} and over {other.features} cannot be merged")
        self._found = None
        self.turns += other.turns
        self.square += other.square
        self.gram = (np.array(self.gram) + np.array(other.gram)).tolist()
        self.moment = (np.array(self.moment) + np.array(other.moment)).tolist()

    def coefficients(self) -> dict[str, float]:
        """Return the seconds of one of each feature: the least squares solution without negative values.

        A feature that was never counted, or cannot be told from the others, costs nothing.
        """
        if self._found is None:
            self._found = self._solved()
        return dict(zip(self.features, self._found, strict=True))

    def _solved(self) -> list[float]:
        gram, moment = np.array(self.gram), np.array(self.moment)
        found = np.zeros(len(self.features))
        for _ in range(20_000):  # coordinate descent; the problem is convex and has a handful of unknowns
            before = found.copy()
            for index in range(len(found)):
                if gram[index, index] > 0:
                    residual = moment[index] - gram[index] @ found + gram[index, index] * found[index]
                    found[index] = max(0.0, residual / gram[index, index])
            if np.abs(found - before).max(initial=0.0) <= 1e-9 * max(1e-9, float(np.abs(found).max(initial=0.0))):
                break
        solved: list[float] = found.tolist()
        return solved

    def relative_error(self) -> float:
        """Return the root of the mean squared error of a turn's seconds, as a share of their root mean square."""
        if not self.turns or self.square <= 0:
            return 0.0
        found = np.array(list(self.coefficients().values()))
        left = self.square - 2 * found @ np.array(self.moment) + found @ np.array(self.gram) @ found
        return float(np.sqrt(max(0.0, left) / self.square))
