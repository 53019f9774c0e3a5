"""A process observes itself: its running computes, and if its memory has run out."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Mapping

from omni_core.errors import ConfigError
from omni_core.protocol.messages import RunningCompute
from omni_core.protocol.specs import StageSpec
from omni_core.scheduling.base import Scheduler

MEMORY_ERRORS = 3
"""Requests in a row that fail with MemoryError before the process is replaced."""

_NEEDED_BYTES = 64 * 2**20
"""A process that cannot have so much more memory has run out of it."""


class ComputeWatch:
    """Reports the running computes of schedulers that offer ``running_computes`` (see :class:`Scheduler`).

    Attributes:
        request_of: by stage, what returns the request of an id by which its scheduler knows a part of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[str, Callable[[], Mapping[str, float]]] = {}
        self.request_of: dict[str, Callable[[str], str]] = {}

    def add(self, stage: StageSpec, scheduler: Scheduler) -> None:
        """Observe the scheduler of a stage.

        Raises:
            ConfigError: the stage sets ``compute_timeout``, and its scheduler does not report its computes.
        """
        running = getattr(scheduler, "running_computes", None)
        if callable(running):
            self._running[stage.name] = running
        elif stage.compute_timeout is not None:
            raise ConfigError(
                f"stages[{stage.name}].compute_timeout: {type(scheduler).__name__} does not report its computes (it has no "
                "method `running_computes`), so they cannot be limited; remove the field"
            )

    def computes(self) -> list[RunningCompute]:
        """The running computes. From any thread."""
        now = self._clock()
        return [
            RunningCompute(stage, self.request_of.get(stage, str)(request_id), now - since)
            for stage, running in self._running.items()
            for request_id, since in running().items()
        ]


def memory_is_exhausted() -> bool:
    """Return whether the process cannot get :data:`_NEEDED_BYTES` more of address space."""
    try:
        mmap.mmap(-1, _NEEDED_BYTES).close()
    except (OSError, MemoryError):
        return True
    return False


class MemoryWatch:
    """Decides that a process must be replaced, because requests fail one after the other for lack of memory.

    A request that asks for too much alone does not lead to that: after it there is memory for others.
    """

    def __init__(self, is_exhausted: Callable[[], bool] = memory_is_exhausted) -> None:
        self._is_exhausted = is_exhausted
        self._errors = 0
        self._completed = 0

    def must_end(self, error_type: str, completed: Callable[[], float]) -> bool:
        """Return whether the process must end, after a request has failed.

        Args:
            completed: counts the requests that the process has completed.
        """
        if error_type != MemoryError.__name__:
            return False
        before, self._completed = self._completed, int(completed())
        self._errors = self._errors + 1 if self._completed == before else 1
        return self._errors >= MEMORY_ERRORS and self._is_exhausted()
