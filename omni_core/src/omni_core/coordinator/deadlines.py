"""Deadlines of requests and of the chunks of their inputs, and the end of a request that has missed one. No IO."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from omni_core.coordinator.actions import Action, AskWaiting
from omni_core.coordinator.timers import Timers
from omni_core.coordinator.tracked_request import RequestState, TrackedRequest
from omni_core.errors import InvalidRequestError, RequestTimeoutError, guarded

ANSWER_SECONDS = 0.3
"""Seconds that processes have to say what an expired request waits for."""

Due = Callable[[TrackedRequest, float], list[Action]]
"""The effect of a timer of a request when it rings."""


def check_timeout(name: str, seconds: Any) -> None:
    """Raise InvalidRequestError if a timeout is neither ``None`` nor a number of seconds that a clock can count."""
    if seconds is not None and not _are_seconds(seconds):
        shown = guarded(lambda: repr(seconds))[:80]
        raise InvalidRequestError(f"{name}: must be a number of seconds greater than 0, is {shown}")


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

    def chunk_sent(self, tracked: TrackedRequest) -> None:
        """A chunk of its input was sent."""
        stream = tracked.input
        if stream is not None and not stream.is_watched and stream.next_due is not None:
            stream.is_watched = True
            self._timers.set(stream.next_due, tracked.request_id, self._check_chunks)

    def _check_chunks(self, tracked: TrackedRequest, now: float) -> list[Action]:
        stream = tracked.input
        if stream is None or tracked.deadline_passed:
            return []
        stream.is_watched, due = False, stream.next_due
        if due is None or now < due:
            self.chunk_sent(tracked)
            return []
        stream.is_late = True
        return self.expire(tracked, now)

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
        missed = f"not finished within its timeout of {tracked.request.timeout} s"
        if (stream := tracked.input) is not None and stream.is_late:
            missed = (
                f"a chunk of its input was not taken within its timeout of {stream.chunk_timeout} s; {stream.progress}"
            )
        message = "; ".join([missed, *where])
        error = RequestTimeoutError(tracked.request_id, None, "TimeoutError", message)
        return self._end(tracked, RequestState.FAILED, error, now)


def _are_seconds(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return 0 < float(value) < math.inf
    except BaseException:  # an integer beyond all floats; a subclass may raise anything
        return False
