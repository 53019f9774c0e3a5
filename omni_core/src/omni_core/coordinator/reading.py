"""Back-pressure of a streaming client that leaves results unread: when its stages pause and go on, and when its request fails. No IO."""

from __future__ import annotations

from omni_core.control.back_pressure import PAUSE_BYTES, PAUSE_EVENTS
from omni_core.coordinator.tracked_request import StreamEvent, TrackedRequest

SLOW_READER_SECONDS = 120.0
"""A client that has been sent no more for so long, and has read nothing, holds up others in its stages: its request fails."""


def must_pause(tracked: TrackedRequest) -> bool:
    """Return whether the stages, which send, must wait."""
    return tracked.paused_at is None and (len(tracked.events) >= PAUSE_EVENTS or tracked.unread_bytes >= PAUSE_BYTES)


def has_read(tracked: TrackedRequest, event: StreamEvent, now: float) -> bool:
    """Count an event that the client has taken. Return whether its stages, which wait, may go on."""
    tracked.was_read = True
    tracked.unread_bytes -= event.nbytes
    if tracked.paused_at is None or tracked.is_over:
        return False
    tracked.paused_at = now
    if 2 * len(tracked.events) > PAUSE_EVENTS or 2 * tracked.unread_bytes > PAUSE_BYTES:
        return False
    tracked.paused_at = None
    return True


def slowness(tracked: TrackedRequest) -> str:
    """Return the message for a client that has read nothing for :data:`SLOW_READER_SECONDS`."""
    unread = f"{len(tracked.events)} partial results ({tracked.unread_bytes} bytes)"
    return f"the client has left {unread} unread for {SLOW_READER_SECONDS:g} s"
