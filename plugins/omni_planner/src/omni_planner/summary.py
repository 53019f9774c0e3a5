"""The figures of a load, the same whether it was measured or simulated: first outputs, completion, throughput."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from attrs import field, frozen

Events = Sequence[tuple[float, str, bool]]
"""``(seconds since the request came, stage, final)`` of what its client read."""

Sound = Sequence[tuple[float, float]]
"""The sound of a request: at what time each piece of it came, and how many seconds it lasts."""


def late_seconds(sound: Sound) -> float:
    """Return for how long a client that begins to play at the first sound has none, until the last has come."""
    late = played(sound) - sum(seconds for _, seconds in sound) - sound[0][0] if sound else 0.0
    return late if late > 1e-6 else 0.0  # the rounding of the sums


def played(sound: Sound) -> float:
    """Return when a client that begins to play at the first sound has played all; 0 without any."""
    end = 0.0
    for when, seconds in sound:
        end = max(end, when) + seconds
    return end


def times_of(requests: Iterable[Events]) -> tuple[dict[str, list[float]], list[float]]:
    """Return the times of requests to the first output of each terminal stage, by its name, and to their end."""
    first: dict[str, list[float]] = {}
    done: list[float] = []
    for events in requests:
        seen: set[str] = set()
        for when, stage, _ in events:
            if stage not in seen:
                seen.add(stage)
                first.setdefault(stage, []).append(when)
        done.append(max(when for when, _, _ in events))
    return first, done


@frozen
class Quantiles:
    """Seconds that half of the requests took at most, and 95 of 100."""

    p50: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """Return those of a sample."""
        p50, p95 = np.quantile(values, (0.5, 0.95))
        return cls(float(p50), float(p95))


@frozen
class Summary:
    """The figures of a load.

    Attributes:
        requests: that ended. refused: those that were not admitted. per_second: requests that ended in a second.
        first: by terminal stage, the time to its first output. done: until the last output.
        late: of the requests with sound, the seconds in which a client that plays it at once has none left.
        failed: requests that failed. retried: of those that ended, the ones that ran again after a death.
    """

    requests: int
    refused: int
    per_second: float
    first: dict[str, Quantiles] = field(factory=dict)
    done: Quantiles | None = None
    late: Quantiles | None = None
    failed: int = 0
    retried: int = 0

    @classmethod
    def of(
        cls,
        requests: Iterable[Events],
        seconds: float,
        refused: int = 0,
        sound: Iterable[Sound] = (),
        failed: int = 0,
        retried: int = 0,
    ) -> Summary:
        """Summarise what clients read. ``seconds``: the load's duration. ``sound``: of the requests that have some."""
        first, done = times_of(requests)
        quantiles = {name: Quantiles.of(values) for name, values in first.items()}
        late = [late_seconds(each) for each in sound]
        return cls(
            len(done),
            refused,
            len(done) / seconds,
            quantiles,
            Quantiles.of(done) if done else None,
            Quantiles.of(late) if late else None,
            failed,
            retried,
        )
