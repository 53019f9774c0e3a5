"""Delay of the first sound of a request until what comes after it can be expected in time.

What a stage computes, and in which batches, is not changed by it. A listener begins to play later, and hears no pause.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

import numpy as np
from attrs import define, field

from omni_torch.loop.step_cost import StepCost
from omni_torch.vocoder.deadlines import DeadlinePolicy

Piece = TypeVar("Piece")

REMEMBERED = 128
"""Requests from which the spread of predictions is known."""

COVERED = 0.95
"""The share of the remembered requests for which the prediction would have been enough."""

FEW = 0.5
"""The share of the usual number of requests at once up to which they are few: for those the line would be an extrapolation."""

_MOVES = 0.02
"""The weight of a request in the usual number."""


class Reach:
    """Predict how much sound must be in hand at the first one so that no pause follows, from requests that have ended.

    With more requests at once each waits longer for its next output, so the prediction is a linear function of their number, by
    least squares with forgetting, times what :data:`COVERED` of the last requests needed of it. Among few, after a busy time, it is at
    most what that share of the last ones among as few needed, where there were any: the line knows the busy time only.
    """

    def __init__(self) -> None:
        self._fit = StepCost(1)
        self._ratios: deque[float] = deque(maxlen=REMEMBERED)
        self._factor: float | None = 1.0
        self._usual = 0.0
        self._alike: dict[int, deque[float]] = {}  # by the power of 2 that their number reaches
        self._enough: dict[int, float] = {}  # for that share of them

    def observe(self, requests: int, seconds: float) -> None:
        """Learn from a request that began among so many and needed so many seconds of sound in hand."""
        self._fit.observe([requests], seconds)
        self._usual += _MOVES * (requests - self._usual) if self._usual else requests
        size = requests.bit_length()
        self._alike.setdefault(size, deque(maxlen=REMEMBERED)).append(seconds)
        self._enough.pop(size, None)
        expected = self._fit.seconds(requests)
        if expected > 0:
            self._ratios.append(seconds / expected)
            self._factor = None

    def seconds(self, requests: int) -> float:
        """Predict what a request needs that begins among so many; 0 before the first one has ended."""
        if self._factor is None:
            self._factor = float(np.quantile(self._ratios, COVERED))
        found, size = self._factor * self._fit.seconds(requests), requests.bit_length()
        if requests > FEW * self._usual or size not in self._alike:
            return found
        if size not in self._enough:
            self._enough[size] = float(np.quantile(self._alike[size], COVERED))
        return min(found, self._enough[size])


@define(eq=False)
class _Line(Generic[Piece]):
    """One request's sound.

    Attributes:
        made: when its first sound was ready.
        among: the requests of the stage at that time.
        first, since: seconds of the first piece, and of those after it.
        reach: seconds that had to be in hand at first, so far.
        kept: what has not gone out, and its seconds; ``None``: all goes out at once.
    """

    made: float
    among: int
    first: float
    since: float = 0.0
    reach: float = 0.0
    kept: list[tuple[Piece, float]] | None = field(factory=list)


@define
class Playout(Generic[Piece]):
    """Keeps the first pieces of each request's sound until the policy lets them go out (:meth:`DeadlinePolicy.starts`).

    Attributes:
        policy: is told of what goes out.
    """

    policy: DeadlinePolicy
    _reach: Reach = field(factory=Reach)
    _lines: dict[str, _Line[Piece]] = field(factory=dict)
    _kept: dict[str, _Line[Piece]] = field(factory=dict)

    def is_kept(self, request_id: str) -> bool:
        """Return whether a request has sound of which nothing has gone out."""
        return request_id in self._kept

    def add(self, request_id: str, piece: Piece, seconds: float, requests: int, now: float) -> list[Piece]:
        """Take in a piece that is ready. Returns it if it goes out at once.

        ``requests``: those that the stage has now.
        """
        line = self._lines.get(request_id)
        if line is None:
            line = self._lines[request_id] = self._kept[request_id] = _Line(now, requests, seconds)
        else:
            line.reach = max(line.reach, now - line.made - line.since)
            line.since += seconds
        if line.kept is None:
            self.policy.emitted(request_id, seconds, now)
            return [piece]
        line.kept.append((piece, seconds))
        return []

    def due(self, requests: int, now: float) -> tuple[list[tuple[str, Piece]], float]:
        """Return the kept pieces that go out now, and when the next ones will; infinity if none are kept."""
        ready, moment = list[tuple[str, Piece]](), math.inf
        for name, line in list(self._kept.items()):
            needed = self._reach.seconds(max(requests, line.among)) - line.first
            starts = self.policy.starts(name, line.made, needed, now)
            if starts <= now:
                ready += [(name, piece) for piece in self.flush(name, now)]
            else:
                moment = min(moment, starts)
        return ready, moment

    def flush(self, request_id: str, now: float) -> list[Piece]:
        """Return all that is kept of a request; it goes out now."""
        line = self._kept.pop(request_id, None)
        if line is None or line.kept is None:
            return []
        pieces, line.kept = line.kept, None
        for _, seconds in pieces:
            self.policy.emitted(request_id, seconds, now)
        return [piece for piece, _ in pieces]

    def end(self, request_id: str) -> None:
        """Learn from a request whose last piece has gone out."""
        line = self._lines.get(request_id)
        if line is not None and line.since:
            self._reach.observe(line.among, line.reach)

    def forget(self, request_id: str) -> None:
        """Forget a request; an unknown one is ignored."""
        self._lines.pop(request_id, None)
        self._kept.pop(request_id, None)
