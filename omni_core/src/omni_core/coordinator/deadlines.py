"""Deadlines of requests: a valid ``timeout``, and the end of a request that was not finished within it. No IO."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from omni_core.coordinator.actions import Action, AskWaiting
from omni_core.coordinator.timers import Timers
from omni_core.coordinator.tracked_request import RequestState, TrackedRequest
from omni_core.errors import InvalidRequestError, RequestTimeoutError, guarded
from omni_core.protocol.messages import OmniRequest

ANSWER_SECONDS = 0.3
"""Seconds that processes have to say what an expired request waits for."""

Due = Callable[[TrackedRequest, float], list[Action]]
"""The effect of a timer of a request when it rings."""


def check_timeout(request: OmniRequest) -> None:
    """Raise InvalidRequestError if the request's ``timeout`` is no number of seconds that a clock can count."""
    if request.timeout is not None and not _are_seconds(request.timeout):
        shown = guarded(lambda: repr(request.timeout))[:80]
        raise InvalidRequestError(f"timeout: must be a number of seconds greater than 0, is {shown}")


class Deadlines:
    """The ends of requests whose deadlines come: the stages are asked what such a request waits for, and then it fails.

    Args:
        timers: those of the requests.
        end: ends a request: ``(request, state, error, now) -> actions``.
    """

    def __init__(self, timers: Timers[Due], end: Callable[..., list[Action]]) -> None:
        self._timers = timers
        self._end = end

    def expire(self, tracked: TrackedRequest, now: float) -> list[Action]:
        """The deadline has come."""
        tracked.deadline_passed = True
        if tracked.state is RequestState.PENDING:
            return self._time_out(tracked, now)
        self._timers.set(now + ANSWER_SECONDS, tracked.request_id, self._time_out)
        return [AskWaiting(tracked.attempt_id)]

    def asked(self, tracked: TrackedRequest, processes: int, now: float) -> list[Action]:
        """So many processes were asked, or, if negative, have answered."""
        tracked.unanswered += processes
        return self._time_out(tracked, now) if tracked.unanswered <= 0 else []

    def answered(self, tracked: TrackedRequest, waiting_for: Mapping[str, str], now: float) -> list[Action]:
        """A process says by stage what the request does there."""
        if not tracked.deadline_passed:
            return []
        tracked.waiting_for.update(waiting_for)
        return self.asked(tracked, -1, now)

    def _time_out(self, tracked: TrackedRequest, now: float) -> list[Action]:
        where = [f"stage {stage!r} {doing}" for stage, doing in sorted(tracked.waiting_for.items())]
        if tracked.state is RequestState.PENDING:
            where = ["it waits to run again alone, after a process died that held it"]
        message = "; ".join([f"not finished within its timeout of {tracked.request.timeout} s", *where])
        error = RequestTimeoutError(tracked.request_id, None, "TimeoutError", message)
        return self._end(tracked, RequestState.FAILED, error, now)


def _are_seconds(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return 0 < float(value) < math.inf
    except BaseException:  # an integer beyond all floats; a subclass may raise anything
        return False
