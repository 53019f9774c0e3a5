"""The number of replicas of one stage, by its queue: a state machine without IO."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from attrs import define, field, frozen
from attrs.validators import ge, gt, instance_of, optional

_NUMBER = instance_of((int, float))


@frozen(kw_only=True)
class AutoscaleSettings:
    """``autoscale`` of a stage.

    Attributes:
        max, min: bounds of the number of replicas.
        queue_seconds: one more, when a request that comes now would wait longer than this in the stage before its compute begins.
        after: seconds for which that must have been so.
        idle_seconds: one less, when none has waited, and there were fewer requests than replicas, for so long.
        gpu, host: lists for ``max`` replicas, where they have devices or hosts of their own; see the fields of a stage.
        policy: a class to use instead of :class:`QueueTime`.
    """

    max: int = field(validator=[instance_of(int), ge(1)])
    min: int = field(default=1, validator=[instance_of(int), ge(1)])
    queue_seconds: float = field(default=1.0, validator=[_NUMBER, gt(0)])
    after: float = field(default=3.0, validator=[_NUMBER, ge(0)])
    idle_seconds: float = field(default=60.0, validator=[_NUMBER, gt(0)])
    gpu: list[int] | None = field(default=None, validator=optional(instance_of(list)))
    host: list[str | None] | None = field(default=None, validator=optional(instance_of(list)))
    policy: str | None = field(default=None, validator=optional(instance_of(str)))

    def __attrs_post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, which is more than max, {self.max}")


@frozen
class Demand:
    """The state of a stage at one time.

    Attributes:
        replicas: those that get requests.
        waiting: requests whose compute has not begun.
        requests: all requests in the stage.
        completed: requests that were completed since the start, over all its replicas.
    """

    replicas: int
    waiting: float
    requests: float
    completed: float


class Policy(Protocol):
    """Decides over the number of replicas. Made with the :class:`AutoscaleSettings`."""

    def decide(self, demand: Demand, now: float) -> int:
        """Return the number of replicas that there should be. Called once a second while there is work, with the time in seconds."""


_WINDOW = 10.0
"""Seconds over which completed requests are counted."""


@define
class QueueTime:
    """Follows the time that a request would wait: those that wait, divided by those that are completed in a second."""

    settings: AutoscaleSettings
    _seen: deque[tuple[float, float]] = field(init=False, factory=deque)
    _long_since: float = field(init=False, default=math.inf)
    _idle_since: float = field(init=False, default=math.inf)
    _waiting_since: float = field(init=False, default=math.inf)

    def decide(self, demand: Demand, now: float) -> int:
        """See :class:`Policy`. At most one more or one less at a time."""
        is_long = self.queue_seconds(demand, now) > self.settings.queue_seconds
        self._long_since = min(self._long_since, now) if is_long else math.inf
        is_idle = not demand.waiting and demand.requests < demand.replicas
        self._idle_since = min(self._idle_since, now) if is_idle else math.inf
        wanted = demand.replicas
        if now - self._long_since >= self.settings.after:
            wanted += 1
        elif now - self._idle_since >= self.settings.idle_seconds:
            wanted -= 1
        wanted = min(max(wanted, self.settings.min), self.settings.max)
        if wanted != demand.replicas:
            self._long_since = self._idle_since = self._waiting_since = math.inf  # the next step has to be earned anew
            self._seen.clear()
        return wanted

    def queue_seconds(self, demand: Demand, now: float) -> float:
        """Return the time that a request which comes now would wait, in seconds, by the rate of the last ten."""
        self._waiting_since = min(self._waiting_since, now) if demand.waiting else math.inf
        if self._seen and demand.completed < self._seen[-1][1]:
            self._seen.clear()  # a replica has ended, and its count with it
        self._seen.append((now, demand.completed))
        while now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        begin, before = self._seen[0]
        if not demand.waiting:
            return 0.0
        if demand.completed > before:
            return demand.waiting * (now - begin) / (demand.completed - before)
        return now - self._waiting_since  # nothing is completed: at least as long as some have waited
