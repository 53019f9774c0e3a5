"""Events of inputs that come as streams: each returns the actions that the caller must carry out, as the request machine does. No IO."""

from __future__ import annotations

from omni_core.coordinator.actions import Action, Feed, Wake
from omni_core.coordinator.tracked_request import TrackedRequest
from omni_core.protocol.codec import Body


def ready(tracked: TrackedRequest) -> list[Action]:
    """Take in that the request was sent to its entry stage: chunks may follow."""
    if tracked.input is None:
        return []
    tracked.input.is_ready = True
    return [Wake(tracked)]


def send(tracked: TrackedRequest, body: Body, has_tensors: bool, now: float) -> list[Action]:
    """Send an encoded chunk; :attr:`InputStream.has_room` is true.

    Raises:
        OmniError: the error with which the request has failed.
    """
    if not _goes_on(tracked):
        return []
    assert tracked.input is not None
    return [Feed(tracked.attempt_id, tracked.request, tracked.input.put(len(body), now), body, has_tensors)]


def finish(tracked: TrackedRequest) -> list[Action]:
    """End the input; :attr:`InputStream.has_room` is true. Raises as :func:`send`."""
    if not _goes_on(tracked):
        return []
    assert tracked.input is not None
    tracked.input.is_finished = True
    return [Feed(tracked.attempt_id, tracked.request, tracked.input.sent)]


def taken(tracked: TrackedRequest, count: int, *, is_over: bool) -> list[Action]:
    """Take in that the entry stage has taken ``count`` chunks, or needs no more of them (``is_over``)."""
    if tracked.input is None:
        return []
    tracked.input.take(count)
    tracked.input.is_unwanted |= is_over
    return [Wake(tracked)]


def _goes_on(tracked: TrackedRequest) -> bool:
    """Return whether the entry stage needs more of the input. Raises the error of a request that has failed."""
    if tracked.error is not None:
        raise tracked.error
    return not tracked.is_over and tracked.input is not None and not tracked.input.is_unwanted
