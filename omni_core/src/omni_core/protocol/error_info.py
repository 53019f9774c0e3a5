"""Exceptions as plain data and back.

This is the only place that formats an exception which a plugin raised. Its ``__str__``, its notes and the attributes that a
traceback shows are code of that plugin: formatting it may raise anything (``SystemExit`` included) or take for ever.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

from omni_core import errors
from omni_core.errors import (
    InvalidRequestError,
    InvalidRequestInStageError,
    OmniError,
    PeerDiedError,
    RequestFailedError,
    StageFailedError,
)
from omni_core.protocol.messages import ErrorInfo

MAX_CHARACTERS = 8_000
"""Characters of an error's message, and of its traceback."""

FORMAT_SECONDS = 0.5
"""Seconds that formatting a message, or a traceback, may take."""

_BUILT_IN = (ValueError, TypeError, RuntimeError, IndexError, AssertionError, MemoryError, RecursionError, SystemExit)

_OWN = frozenset(each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception))


def describe(error: Any, stage: str | None) -> ErrorInfo:
    """Return an exception of ``stage`` as plain data. Never raises, and takes at most twice :data:`FORMAT_SECONDS`.

    Deliberate errors (:class:`~omni_core.errors.OmniError`) have no traceback: their message says it all.
    """
    if not issubclass(type(error), BaseException):
        return ErrorInfo(stage, "RuntimeError", _guarded(lambda: str(error)))
    kind = type(error)
    trace = (
        "" if issubclass(kind, OmniError) else _guarded(lambda: "".join(traceback.format_exception(error, limit=-8)))
    )
    at_fault = error.stage if kind is StageFailedError else stage
    return ErrorInfo(
        at_fault,
        name_of(error),
        message_of(error),
        trace,
        peer_died=issubclass(kind, PeerDiedError),
        is_invalid_request=issubclass(kind, InvalidRequestError),
    )


def error_of(info: ErrorInfo, request_id: str) -> RequestFailedError:
    """Return the exception that a client gets for a failure in a stage."""
    cls = InvalidRequestInStageError if info.is_invalid_request else RequestFailedError
    return cls(request_id, info.stage, info.error_type, info.message)


def name_of(error: BaseException) -> str:
    """Return the name of an exception's class, even where its metaclass hides it."""
    return _plain(type.__dict__["__name__"].__get__(type(error)))


def message_of(error: BaseException, *, with_type: bool = False) -> str:
    """Return an exception's message, or its ``repr`` where it has none; ``with_type``: after its class's name."""

    def text() -> str:
        return _plain(str(error)) or repr(error)

    is_safe = type(error) in _OWN or (type(error) in _BUILT_IN and all(type(each) in (str, int) for each in error.args))
    message = _cut(text()) if is_safe else _guarded(text)
    return f"{name_of(error)}: {message}" if with_type else message


def _guarded(text: Callable[[], str]) -> str:
    """Call ``text`` in a thread, so that it can be left behind where it takes too long."""
    made = [f"(no message: formatting it took more than {FORMAT_SECONDS} s)"]

    def make() -> None:
        try:
            made[0] = _cut(_plain(text()))
        except BaseException as broken:
            made[0] = f"(no message: its __str__ raised {name_of(broken)})"

    thread = threading.Thread(target=make, name="format-error", daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError):  # out of threads, or of memory
        return "(no message: there is no thread to format it in)"
    thread.join(FORMAT_SECONDS)
    return made[0]


def _plain(text: str) -> str:
    """Return an exact ``str`` that can be sent as UTF-8."""
    return str.encode(text, "utf-8", "replace").decode()


def _cut(text: str) -> str:
    """Return the text, or its beginning and end where it is long."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]} ... [{len(text) - MAX_CHARACTERS} characters cut] ... {text[-half:]}"
