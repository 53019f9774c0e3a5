"""Isolation of plugins' code: what it raises becomes a :class:`PluginFault`, what it prints goes to standard error."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any


class PluginFault(Exception):
    """Code of a plugin raised something, be it ``SystemExit``.

    Attributes:
        traceback: where, as text of many lines. ``str()`` of the fault is one line.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(described(error))
        try:
            self.traceback = "".join(traceback.format_exception(error))
        except BaseException:  # it is formatted by its own code; a SyntaxError with odd attributes cannot be formatted
            self.traceback = str(self)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run a plugin's code so that it can neither end the program nor write into its results.

    Raises:
        PluginFault: the code raised an exception, ``SystemExit`` and ``KeyboardInterrupt`` included. Ctrl-C is not such a fault:
            its ``KeyboardInterrupt`` passes through.
    """
    with _interrupts() as pressed, contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except BaseException as error:
            if issubclass(type(error), GeneratorExit) or (issubclass(type(error), KeyboardInterrupt) and pressed):
                raise
            raise PluginFault(error) from error


def described(error: BaseException) -> str:
    """Return the type and message of an exception in one line; of a syntax error, its file and line."""
    try:
        text = str(error)
        if isinstance(error, SyntaxError) and error.filename:
            text = f"{error.msg} ({error.filename}, line {error.lineno})"
    except BaseException:
        text = "its message cannot be read"
    return f"{type(error).__name__}: {' '.join(text.split())}".removesuffix(": ")


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """A list that is empty until SIGINT arrives. Only the main thread gets signals and may handle them."""
    pressed: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield pressed
        return

    def record(number: int, frame: Any) -> None:
        pressed.append(number)
        previous(number, frame)

    signal.signal(signal.SIGINT, record)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)
