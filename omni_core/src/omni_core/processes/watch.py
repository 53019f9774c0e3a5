"""A process observes itself: if its memory has run out."""

from __future__ import annotations

import mmap
from collections.abc import Callable

MEMORY_ERRORS = 3
"""Requests in a row that fail with MemoryError before the process is replaced."""

_NEEDED_BYTES = 64 * 2**20
"""A process that cannot have so much more memory has run out of it."""


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
