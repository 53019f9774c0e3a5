"""The exceptions that omni raises on purpose, and the safe formatting of any other.

Each message says what is wrong, where, and what to do. The ``__str__``, the notes and the attributes of an exception that a plugin
raised are code of that plugin: formatting them may raise anything (``SystemExit`` included) or take for ever.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from typing import TypeVar

from omni_core.elsewhere import NAMES

T = TypeVar("T")


class OmniError(Exception):
    """Base of every error that omni raises deliberately."""


class ConfigError(OmniError):
    """A pipeline's configuration is invalid; the message names the full path, such as ``stages[decoder].tp_size``."""


class PluginError(OmniError):
    """A component was asked for that no loadable plugin provides."""


class InvalidRequestError(OmniError):
    """The request itself is at fault: a corrupt file, an unknown speaker, a prompt that is too long.

    Raised at admission, or in a stage; then a caller gets it with ``request_id`` and ``stage``.
    """

    request_id: str | None = None
    stage: str | None = None


class RequestTooLargeError(InvalidRequestError):
    """The request asks for more than a limit allows: too many pixels, too long a text, more than may travel between two stages.

    Raised like :class:`InvalidRequestError`, best before the work that the limit bounds; the message names the limit.
    """


class RequestFailedError(OmniError):
    """A request failed inside the pipeline.

    ``stage`` is where it failed (``None``: outside the stages), ``error_type`` the name of the exception raised there.
    """

    def __init__(self, request_id: str, stage: str | None, error_type: str, message: str) -> None:
        self.request_id: str | None = request_id
        self.stage = stage
        self.error_type = error_type
        self.message = message
        where = f"stage {stage!r}" if stage else "the coordinator"
        super().__init__(f"request {request_id} failed in {where}: {error_type}: {message}")


class InvalidRequestInStageError(InvalidRequestError, RequestFailedError):
    """A stage found the request itself at fault. It is both, so that a caller may catch either."""


class RequestTooLargeInStageError(RequestTooLargeError, InvalidRequestInStageError):
    """A stage found the request too large."""


class RequestTimeoutError(RequestFailedError):
    """A request was not finished within its ``timeout``; the message names the stages that had it."""


class RequestAbortedError(OmniError):
    """The request was aborted before it completed."""


class OverloadedError(OmniError):
    """The pipeline holds as many requests as it may. ``retry_after`` is a hint in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class CodecError(OmniError):
    """A value cannot be sent, or received bytes cannot be decoded; the message names the path inside the payload."""


class RelayError(OmniError):
    """A transfer of bytes failed: a dead peer, a full pool, a time-out."""


class PeerDiedError(RelayError):
    """The process that held the bytes has ended. Not the request's fault: it may be run again (``retries``)."""


class RelayCapacityError(RelayError):
    """The bytes can never fit the pool, however long the wait; the message says which setting to raise."""


class RelayFullError(RelayError):
    """The pool may never have room: what would be waited for may itself wait for these bytes. They can go another way."""


class TransportError(OmniError):
    """A control message could not be sent: the peer does not read, or the endpoint is not allowed."""


class StartupError(OmniError):
    """A pipeline did not become ready; the message names the stage and shows its last lines of output."""


class StageFailedError(OmniError):
    """A stage has died too often, and what needs it fails for now; ``stage`` is its name."""

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        super().__init__(f"stage {stage!r} has failed, as its process has died too often: {reason}")


NAME_CHARACTERS = 100
"""The longest name that is compared with others, or shown whole. Comparing takes time by its square."""

LISTED = 30
"""Names in a list of all that there are."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = NAME_CHARACTERS


def shown(value: object) -> str:
    """Return the ``repr`` of a value that somebody gave, shortened: also the work for it is bounded."""
    return _REPR.repr(value)


def did_you_mean(name: object, known: Iterable[str], *, listing: str = "there are") -> str:
    """Return the end of a message about an unknown ``name``: what another system's is here, the nearest of ``known``, or a list of them."""
    if isinstance(name, str) and name in NAMES:
        return f"; here it is {NAMES[name]}"
    names = list(known)
    if isinstance(name, str) and len(name) <= NAME_CHARACTERS and (near := get_close_matches(name, names, 1)):
        return f"; did you mean {near[0]!r}?"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"; {listing}: {', '.join(names[:LISTED]) or 'none'}{more}"


MAX_CHARACTERS = 8_000
"""Characters of an error's message, and of its traceback."""

FORMAT_SECONDS = 0.5
"""Seconds that formatting a message, or a traceback, may take."""

_BUILT_IN = (ValueError, TypeError, RuntimeError, IndexError, AssertionError, MemoryError, RecursionError, SystemExit)

_OWN = [each for each in globals().values() if isinstance(each, type) and issubclass(each, Exception)]

_KNOWN = (*_BUILT_IN, *_OWN)
"""Classes whose ``str()`` runs no code but that of their arguments."""


def name_of(error: BaseException) -> str:
    """Return the name of an exception's class, even where its metaclass hides it."""
    return _plain(type.__dict__["__name__"].__get__(type(error)))


def message_of(error: BaseException, *, with_type: bool = False) -> str:
    """Return an exception's message, or its ``repr`` where it has none; ``with_type``: after its class's name."""

    def text() -> str:
        return _plain(str(error)) or repr(error)

    # By identity: a class of somebody else may have a hash and an equality of its own.
    is_known = any(type(error) is each for each in _KNOWN)
    is_safe = is_known and all(type(each) is str or type(each) is int for each in error.args)
    message = _cut(text()) if is_safe else guarded(text)
    return f"{name_of(error)}: {message}" if with_type else message


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception that may be anyone's, as text; or why there is none.

    Log this, and not the exception itself: what formats a record runs the code of the exception's class.
    """
    import traceback  # here: a plugin's light module imports this one

    return guarded(lambda: "".join(traceback.format_exception(error, limit=-8)).rstrip())


def own_copy(error: BaseException) -> OmniError | None:
    """Return a deliberate error that anyone's code has raised as one of omni's own class with the same message, and nothing else of it;
    ``None`` for other exceptions and for those that say more than a message.
    """
    for kind in type.__dict__["__mro__"].__get__(type(error)):
        if kind is OverloadedError is type(error):  # an attribute of a subclass may be code
            after = getattr(error, "retry_after", None)
            return OverloadedError(message_of(error), after) if type(after) is float or type(after) is int else None
        if any(kind is each for each in _OWN):
            return kind(message_of(error)) if kind.__init__ is Exception.__init__ else None
    return None


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C of the user, which must end what runs, and not raised by the code itself."""
    # Of its type: ``isinstance`` reads ``__class__``, which may be anything. So may its ``__traceback__``.
    if not issubclass(type(error), KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    import opcode
    import signal  # here: a plugin's light module imports this one

    handler = signal.getsignal(signal.SIGINT)
    while isinstance(handler, partial):
        handler = handler.func
    code = getattr(handler, "__code__", None)
    last = trace = BaseException.__dict__["__traceback__"].__get__(error)
    while trace is not None:
        if code is not None and trace.tb_frame.f_code is code:
            return True
        last, trace = trace, trace.tb_next
    # Python's own handler has no frame: then no statement `raise` is where the exception comes from.
    return last is None or last.tb_frame.f_code.co_code[last.tb_lasti] != opcode.opmap["RAISE_VARARGS"]


def contained(call: Callable[[], T], default: T, what: str) -> T:
    """Return what ``call`` returns; where it raises anything but a Ctrl-C, log that ``what`` has failed and return ``default``."""
    try:
        return call()
    except BaseException as error:
        if is_interrupt(error):
            raise
        import logging

        logging.getLogger(__name__).warning("%s has failed: %s", what, message_of(error, with_type=True))
        return default


def guarded(text: Callable[[], str]) -> str:
    """Return what ``text`` returns, or why there is none. It is called in a thread, which is ended if it takes too long, or left behind
    where it cannot be.
    """
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
    found = made[0]
    if thread.is_alive() and thread.ident is not None:
        import ctypes  # takes milliseconds, and is hardly ever needed

        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    return found


def _plain(text: str) -> str:
    """Return an exact ``str`` that can be sent as UTF-8."""
    return str.encode(text, "utf-8", "replace").decode()


def _cut(text: str) -> str:
    """Return the text, or its beginning and end where it is long."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]} ... [{len(text) - MAX_CHARACTERS} characters cut] ... {text[-half:]}"
