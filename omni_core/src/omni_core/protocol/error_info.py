"""Exceptions as plain data and back."""

from __future__ import annotations

from typing import Any

from omni_core.errors import (
    InvalidRequestError,
    InvalidRequestInStageError,
    OmniError,
    PeerDiedError,
    RequestFailedError,
    RequestTooLargeError,
    RequestTooLargeInStageError,
    StageFailedError,
    guarded,
    message_of,
    name_of,
    traceback_of,
)
from omni_core.protocol.messages import ErrorInfo


def describe(error: Any, stage: str | None) -> ErrorInfo:
    """Return an exception of ``stage`` as plain data. Never raises, and takes at most twice
    :data:`~omni_core.errors.FORMAT_SECONDS`.

    Deliberate errors (:class:`~omni_core.errors.OmniError`) have no traceback: their message says it all.
    """
    if not issubclass(type(error), BaseException):
        return ErrorInfo(stage, "RuntimeError", guarded(lambda: str(error)))
    kind = type(error)
    trace = "" if issubclass(kind, OmniError) else traceback_of(error)
    at_fault = stage
    if (
        kind is StageFailedError and type(found := getattr(error, "stage", None)) is str
    ):  # its attributes can be anything
        at_fault = found
    return ErrorInfo(
        at_fault,
        name_of(error),
        message_of(error),
        trace,
        peer_died=issubclass(kind, PeerDiedError),
        is_invalid_request=issubclass(kind, InvalidRequestError),
        is_too_large=issubclass(kind, RequestTooLargeError),
    )


def error_of(info: ErrorInfo, request_id: str) -> RequestFailedError:
    """Return the exception that a client gets for a failure in a stage, with the traceback of the stage as a note."""
    cls = InvalidRequestInStageError if info.is_invalid_request else RequestFailedError
    if info.is_too_large:
        cls = RequestTooLargeInStageError
    made = cls(request_id, info.stage, info.error_type, info.message)
    if info.traceback:
        made.add_note(info.traceback)
    return made
