"""Timers by request: an ordered list of what is due when. No IO and no clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import Generic, TypeVar

Due = TypeVar("Due", bound=Callable[..., object])


class Timers(Generic[Due]):
    """Timers of requests, by time.

    Args:
        names: the requests that are not over; timers of others are dropped.
        usual: timers that may be kept before those of ended requests are dropped.
    """

    def __init__(self, names: Collection[str], usual: int) -> None:
        self._names = names
        self._usual = usual
        self._timers: list[tuple[float, int, str, Due]] = []
        self._numbers = count()

    def set(self, when: float, name: str, due: Due) -> None:
        """Add a timer of the request ``name`` for the time ``when``."""
        if len(self._timers) > self._usual:  # most belong to requests that have ended
            self._timers = [timer for timer in self._timers if timer[2] in self._names]
            heapq.heapify(self._timers)
        heapq.heappush(self._timers, (when, next(self._numbers), name, due))

    def next(self) -> float | None:
        """Return the time of the first timer."""
        while self._timers and self._timers[0][2] not in self._names:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def pop(self, now: float) -> Iterator[tuple[str, Due]]:
        """Take the timers that are due, each with its request; it may have ended."""
        while self._timers and self._timers[0][0] <= now:
            _, _, name, due = heapq.heappop(self._timers)
            yield name, due
