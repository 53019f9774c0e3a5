"""Replaces parts of the machine and of the runtime while a world runs: pids, threads, the log, and, in half of all worlds, bounds."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from omni_testing.world.simulation import World

SMALL = {
    "omni_core.coordinator.reading.PAUSE_EVENTS": 4,
    "omni_core.coordinator.input_stream.MOST_INPUT_CHUNKS": 2,
    "omni_core.stage.outputs.MOST_OUTPUTS": 3,
    "omni_core.stage.inflow.MOST_CHUNKS": 4,
    "omni_core.control.peer.BACKLOG_MESSAGES": 5,
    "omni_core.control.peer.ASK_AFTER": 6,
}
"""Bounds so small that what happens at them happens often."""

_EXPECTED_ERRORS = ("stage %s: %s%s", "stage %s has died %d times")


@contextmanager
def patched(world: World, *, small: bool) -> Iterator[None]:
    """Replace what a world needs."""
    log = logging.getLogger("omni_core")
    handler, before = _Errors(world), (log.level, log.propagate)

    def pid() -> int:
        current = world.clock.current
        return current.process.pid if current is not None else 1

    with ExitStack() as patches:
        for name, value in SMALL.items() if small else ():
            patches.enter_context(patch(name, value))
        patches.enter_context(patch.object(os, "getpid", pid))
        patches.enter_context(patch("omni_core.stage.thread.threading", SimpleNamespace(Thread=_NoThread)))
        patches.enter_context(patch("omni_core.errors.threading", _Inline))
        log.addHandler(handler)
        log.setLevel(logging.ERROR)
        log.propagate = False
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(before[0])
            log.propagate = before[1]


class _NoThread:
    """A thread that never runs: the schedulers of a world are called."""

    ident = None

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class _Inline(_NoThread):
    """Stands for ``threading`` where a message is formatted: what a thread would do is done at once."""

    current_thread = staticmethod(threading.current_thread)
    main_thread = staticmethod(threading.main_thread)

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self._target = target

    def start(self) -> None:
        self._target()

    def join(self, timeout: float) -> None:
        pass


_Inline.Thread = _Inline  # type: ignore[attr-defined]


class _Errors(logging.Handler):
    """Fails a world in which an error is logged that is none of its deaths."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if not record.msg.startswith(_EXPECTED_ERRORS):
            self._world.note(f"logged: {record.getMessage()}")
            self._world.errors.append(record.getMessage())
