"""Back-pressure of a streaming client that leaves results unread: when its stages pause and go on, and when its request fails. No IO."""

from __future__ import annotations

from collections.abc import Callable

from omni_core.control.back_pressure import MAX_UNREAD_EVENTS, PAUSE_BYTES, PAUSE_EVENTS
from omni_core.coordinator.actions import Action, Flow, Wake
from omni_core.coordinator.deadlines import Due
from omni_core.coordinator.timers import Timers
from omni_core.coordinator.tracked_request import StreamEvent, TrackedRequest
from omni_core.protocol.messages import ErrorInfo

SLOW_READER_SECONDS = 120.0
"""A client that has been sent no more for so long, and has read nothing, holds up others in its stages: its request fails."""


class Readers:
    """The clients that read partial results, some of them slowly.

    Args:
        timers: those of the requests.
        fail: ends a request: ``(request, error, now) -> actions``.
    """

    def __init__(self, timers: Timers[Due], fail: Callable[[TrackedRequest, ErrorInfo, float], list[Action]]) -> None:
        self._timers = timers
        self._fail = fail

    def left_unread(self, tracked: TrackedRequest, stage: str, now: float) -> list[Action]:
        """Take in that a partial result of ``stage`` waits for the client."""
        if len(tracked.events) > MAX_UNREAD_EVENTS:
            message = f"the client has left {MAX_UNREAD_EVENTS} partial results unread"
            return self._fail(tracked, ErrorInfo(stage, "SlowReader", message), now)
        is_much = len(tracked.events) >= PAUSE_EVENTS or tracked.unread_bytes >= PAUSE_BYTES
        if tracked.paused_at is not None or not is_much:
            return [Wake(tracked)]
        tracked.paused_at = now
        if not tracked.is_watched:
            tracked.is_watched = True
            self._timers.set(now + SLOW_READER_SECONDS, tracked.request_id, self._check)
        return [Flow(tracked.attempt_id, True), Wake(tracked)]

    def read(self, tracked: TrackedRequest, event: StreamEvent, now: float) -> list[Action]:
        """Take in that the client has taken an event."""
        tracked.was_read = True
        tracked.unread_bytes -= event.nbytes
        if tracked.paused_at is None or tracked.is_over:
            return []
        tracked.paused_at = now
        if 2 * len(tracked.events) > PAUSE_EVENTS or 2 * tracked.unread_bytes > PAUSE_BYTES:
            return []
        tracked.paused_at = None
        return [Flow(tracked.attempt_id, False)]

    def _check(self, tracked: TrackedRequest, now: float) -> list[Action]:
        if tracked.paused_at is None:
            tracked.is_watched = False
            return []
        due = tracked.paused_at + SLOW_READER_SECONDS
        if now < due:
            self._timers.set(due, tracked.request_id, self._check)
            return []
        unread = f"{len(tracked.events)} partial results ({tracked.unread_bytes} bytes)"
        message = f"the client has left {unread} unread for {SLOW_READER_SECONDS:g} s"
        return self._fail(tracked, ErrorInfo(None, "SlowReader", message), now)
