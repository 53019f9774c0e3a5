"""The clock of a simulation, and what works by it: threads that do one thing after another, and GPUs that are shared."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Clock:
    """The simulated time, in seconds, and all that will happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self._coming: list[tuple[float, int, Action]] = []
        self._number = count().__next__
        self._is_halted = False

    def after(self, seconds: float, action: Action) -> None:
        """Call ``action`` in so many seconds; of those at one time, the one that was given first comes first."""
        heapq.heappush(self._coming, (self.now + seconds, self._number(), action))

    def halt(self) -> None:
        """Let nothing happen after what happens now."""
        self._is_halted = True

    def run(self) -> None:
        """Go on until nothing is left to happen."""
        while self._coming and not self._is_halted:
            self.now, _, action = heapq.heappop(self._coming)
            action()


class Thread:
    """A thread with a processor of its own. ``busy``: seconds that it works, until the end of what it was given."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free = self.busy = 0.0

    def work(self, seconds: float) -> float:
        """Work for so many seconds after all that it was given before. Returns the seconds until that is done."""
        self.busy += seconds
        self._free = max(self._free, self._clock.now) + seconds
        return self._free - self._clock.now


class Gpu:
    """A GPU whose processes share it equally. ``busy``: seconds that it has computed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: list[tuple[float, int, Action]] = []
        """By the work that each process will have been given when the job is done (``_given``)."""
        self._number = count().__next__
        self._given = self._since = self.busy = 0.0
        self._expected = -1

    def compute(self, seconds: float, then: Action) -> None:
        """Compute for so many seconds of the whole GPU, then call ``then``."""
        self._advance()
        heapq.heappush(self._jobs, (self._given + seconds, self._number(), then))
        self._expect()

    def _advance(self) -> None:
        elapsed, self._since = self._clock.now - self._since, self._clock.now
        if self._jobs:
            self._given += elapsed / len(self._jobs)
            self.busy += elapsed

    def _expect(self) -> None:
        self._expected = expected = self._number()
        if self._jobs:
            left = max(0.0, self._jobs[0][0] - self._given) * len(self._jobs)
            self._clock.after(left, lambda: self._end(expected))

    def _end(self, expected: int) -> None:
        if expected != self._expected:
            return  # another job has come meanwhile
        self._advance()
        end, _, then = heapq.heappop(self._jobs)
        self._given = max(self._given, end)  # without the rounding of the division
        self._expect()
        then()
