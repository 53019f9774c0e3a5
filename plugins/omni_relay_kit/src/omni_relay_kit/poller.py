"""Polls an engine that does not notify: often while events come, less often while none does, and not at all while none is expected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from omni_core.api import kept_up

_PATIENT_SECONDS, _SLOW_SECONDS = 0.001, 0.005
_SLOW_AFTER_SECONDS = 1.0
"""The poller polls every millisecond, and less often after this many seconds without an event."""


class Poller:
    """A task that polls while events are expected.

    Args:
        look: takes in what has happened; returns True if anything has.
        expects: returns True while an event is expected.
        eager_seconds: for how long :meth:`hurry` polls in every iteration of the loop.
    """

    def __init__(self, look: Callable[[], bool], expects: Callable[[], bool], eager_seconds: float) -> None:
        self._look, self._expects, self._eager_seconds = look, expects, eager_seconds
        self._task: asyncio.Future[None] | None = None
        self._last_event = self._hurried = 0.0

    @property
    def is_polling(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Poll, from now on often: an event is expected."""
        self._last_event = time.monotonic()
        if not self.is_polling:
            self._task = kept_up(self._poll, "the polling of a relay")

    def hurry(self) -> None:
        """Poll without pauses for a while. This takes a whole core, which the peer may need on a busy machine."""
        self._hurried = time.monotonic()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _poll(self) -> None:
        while self._expects():
            if self._look():
                self._last_event = time.monotonic()
            now = time.monotonic()
            pause = _PATIENT_SECONDS if now - self._last_event < _SLOW_AFTER_SECONDS else _SLOW_SECONDS
            await asyncio.sleep(0 if now - self._hurried < self._eager_seconds else pause)
