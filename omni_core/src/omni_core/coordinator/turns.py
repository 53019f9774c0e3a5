"""The state machine of the requests with an admission policy: they wait for their turn in the order in which they came."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Protocol

from omni_core.coordinator.actions import Action
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.tracked_request import RequestState, TrackedRequest
from omni_core.errors import OmniError, contained

_LATER = 1e-6
"""Seconds by which a timer rings late, so that rounding does not make it ring again."""


class AdmissionPolicy(Protocol):
    """Says when requests may begin. One thread calls it; times are seconds of one clock.

    ``stages``: the terminal stages that answer the request, which tell its kind.
    """

    def begins(self, stages: frozenset[str], came: float, now: float) -> float:
        """Return when a request may begin if nothing else happens before: ``now`` for at once, infinity for never. With nothing in
        flight it is ``now``, so that every request has its turn.
        """

    def latest(self, stages: frozenset[str], came: float) -> float:
        """Return the moment after which a request that has not begun is refused; infinity: it waits as long as it takes, and overtakes
        those that wait for their turn when it may begin.
        """

    def begun(self, name: str, stages: frozenset[str], came: float, now: float, *, is_heard: bool) -> None:
        """Take in the beginning of a request. ``is_heard``: :meth:`heard` will tell its outputs, because it is streamed."""

    def heard(self, name: str, stage: str, now: float) -> None:
        """Take in the first output of a stage for a request."""

    def ended(self, name: str, now: float) -> None:
        """Forget a request; an unknown one is ignored."""


class AdmittingMachine(RequestMachine):
    """Requests from admission to their end; each begins when a policy says so.

    A request that is held is pending: it has its id, counts as in flight, can be aborted and times out. One that came first begins first;
    one that is refused ends with :class:`~omni_core.errors.OverloadedError`, at once or when its time has come.
    """

    def __init__(self, *, policy: AdmissionPolicy, **options: Any) -> None:
        super().__init__(**options)
        self._policy = _Contained(policy)
        self._queue: deque[tuple[TrackedRequest, frozenset[str]]] = deque()
        self._heard: dict[str, set[str]] = {}
        self._is_releasing = False

    def result(
        self, attempt_id: str, stage: str, data: Any, *, final: bool, now: float, nbytes: int = 0
    ) -> list[Action]:
        """See the base class."""
        tracked = self._attempts.get(attempt_id)
        if tracked is None or not self._takes(tracked, stage, final) or stage in self._heard[tracked.request_id]:
            return super().result(attempt_id, stage, data, final=final, now=now, nbytes=nbytes)
        self._heard[tracked.request_id].add(stage)
        self._policy.heard(tracked.request_id, stage, now)
        taken = super().result(attempt_id, stage, data, final=final, now=now, nbytes=nbytes)
        return [*taken, *self._release(now)]

    def _start(self, tracked: TrackedRequest, now: float) -> list[Action]:
        stages = frozenset(tracked.terminals)
        if tracked.attempts:  # it runs again, and has had its turn
            self._policy.ended(tracked.request_id, now)
            return self._begin(tracked, stages, now)
        begins = self._policy.begins(stages, tracked.since, now)
        latest = self._policy.latest(stages, tracked.since)
        if begins <= now and (not self._queue or math.isinf(latest)):
            return self._begin(tracked, stages, now)
        if latest <= now or (begins > latest and not math.isinf(begins)):
            return self._refuse(tracked, begins - now, now)
        self._queue.append((tracked, stages))
        if not math.isinf(latest):
            self._timers.set(latest + _LATER, tracked.request_id, self._give_up)
        if len(self._queue) == 1:
            self._ask_again(tracked, begins)
        return []

    def _begin(self, tracked: TrackedRequest, stages: frozenset[str], now: float) -> list[Action]:
        self._heard[tracked.request_id] = set()
        self._policy.begun(tracked.request_id, stages, tracked.since, now, is_heard=tracked.wants_partial)
        return super()._start(tracked, now)

    def _end(self, tracked: TrackedRequest, state: RequestState, error: OmniError | None, now: float) -> list[Action]:
        self._policy.ended(tracked.request_id, now)
        self._heard.pop(tracked.request_id, None)
        return [*super()._end(tracked, state, error, now), *self._release(now)]

    def _release(self, now: float) -> list[Action]:
        """Begin those whose turn has come."""
        actions: list[Action] = []
        if self._is_releasing:
            return actions
        self._is_releasing = True
        while self._queue:
            tracked, stages = self._queue[0]
            if not tracked.is_over:
                begins = self._policy.begins(stages, tracked.since, now)
                if begins > now:
                    self._ask_again(tracked, begins)
                    break
                actions += self._begin(tracked, stages, now)
            self._queue.popleft()
        self._is_releasing = False
        return actions

    def _ask_again(self, tracked: TrackedRequest, when: float) -> None:
        if not math.isinf(when):
            self._timers.set(when + _LATER, tracked.request_id, lambda _, now: self._release(now))

    def _give_up(self, tracked: TrackedRequest, now: float) -> list[Action]:
        """Refuse a request that has waited for its turn as long as it may."""
        return [] if tracked.attempts else [*self._refuse(tracked, 0.0, now), *self._release(now)]

    def _refuse(self, tracked: TrackedRequest, seconds: float, now: float) -> list[Action]:
        held = f"{self.in_flight - 1} requests are in flight, with which its first output would be later than the objective"
        error = self._overloaded(held, self._typical_seconds if math.isinf(seconds) else seconds)
        actions = super()._end(tracked, RequestState.FAILED, error, now)
        self._ended.pop(tracked.request_id)  # it may be asked again under its name
        for name, more in (("admitted", -1), ("failed", -1), ("refused", 1)):
            self.counts[name] += more
        return actions


class _Contained:
    """A policy of anyone's, of which a failure is logged and hurts no request: what it cannot judge begins at once."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy

    def begins(self, stages: frozenset[str], since: float, now: float) -> float:
        return contained(lambda: float(self._policy.begins(stages, since, now)), now, _WHAT)

    def latest(self, stages: frozenset[str], since: float) -> float:
        return contained(lambda: float(self._policy.latest(stages, since)), math.inf, _WHAT)

    def begun(self, request_id: str, stages: frozenset[str], since: float, now: float, *, is_heard: bool) -> None:
        contained(lambda: self._policy.begun(request_id, stages, since, now, is_heard=is_heard), None, _WHAT)

    def heard(self, request_id: str, stage: str, now: float) -> None:
        contained(lambda: self._policy.heard(request_id, stage, now), None, _WHAT)

    def ended(self, request_id: str, now: float) -> None:
        contained(lambda: self._policy.ended(request_id, now), None, _WHAT)


_WHAT = "the policy of `admission`"
