"""Deadlines of requests: a valid ``timeout``, and the error of a request that was not finished within it."""

from __future__ import annotations

import math
from typing import Any

from omni_core.coordinator.requests import RequestState, TrackedRequest
from omni_core.errors import InvalidRequestError, RequestTimeoutError, guarded
from omni_core.protocol.messages import OmniRequest


def check_timeout(request: OmniRequest) -> None:
    """Raise InvalidRequestError if the request's ``timeout`` is no number of seconds that a clock can count."""
    if request.timeout is not None and not _are_seconds(request.timeout):
        shown = guarded(lambda: repr(request.timeout))[:80]
        raise InvalidRequestError(f"timeout: must be a number of seconds greater than 0, is {shown}")


def timeout_error(tracked: TrackedRequest) -> RequestTimeoutError:
    """Return the error of a request whose deadline has passed; it names the stages that had it."""
    where = [f"stage {stage!r} {doing}" for stage, doing in sorted(tracked.waiting_for.items())]
    if tracked.state is RequestState.PENDING:
        where = ["it waits to run again alone, after a process died that held it"]
    message = "; ".join([f"not finished within its timeout of {tracked.request.timeout} s", *where])
    return RequestTimeoutError(tracked.request_id, None, "TimeoutError", message)


def _are_seconds(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return 0 < float(value) < math.inf
    except BaseException:  # an integer beyond all floats; a subclass may raise anything
        return False
