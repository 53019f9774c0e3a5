"""Faults of what runs beside its owner: none is silent, and none fills the log.

asyncio says that a task has failed when the task is collected, which is never while its owner holds it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from omni_core.errors import message_of, traceback_of

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between a failure of what is kept up and its next beginning: the first pause, doubled up to the longest."""

STEADY_SECONDS = 60.0
"""A time of running after which the first pause is used again."""


def watched(
    work: Awaitable[Result], what: str, on_failure: Callable[[BaseException], None] = lambda error: None
) -> asyncio.Future[Result]:
    """Run ``work`` as a task whose failure is logged at once. Keep the task: asyncio does not.

    Args:
        what: its name in the log.
        on_failure: called with the exception. Neither hears of a cancellation.
    """

    def ended(task: asyncio.Future[Result]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("%s has failed: %s\n%s", what, message_of(error, with_type=True), traceback_of(error))
            on_failure(error)

    task = asyncio.ensure_future(work)
    task.add_done_callback(ended)
    return task


def kept_up(run: Callable[[], Awaitable[None]], what: str) -> asyncio.Future[None]:
    """Run ``run()`` as a task; where it raises, log that and run it again after a pause, until it returns. Keep the task.

    For a loop that others rely on, such as one that reads a socket: it must not end at something that it did not expect.
    """

    async def again() -> None:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        while True:
            begun = loop.time()
            try:
                return await run()
            except Exception as error:
                pause = FIRST_PAUSE if loop.time() - begun > STEADY_SECONDS else pause
                logger.error("%s has failed, and begins again in %g s\n%s", what, pause, traceback_of(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    return watched(again(), what)


class Sparing(logging.Filter):
    """Lets through so many records of one kind (one format) in a while, for a logger of what others send.

    The first record after that says how many were left out.

    Args:
        most: records of a kind.
        seconds: the while.
    """

    def __init__(self, most: int = 5, seconds: float = 10.0) -> None:
        super().__init__()
        self._most, self._seconds = most, seconds
        self._kinds: dict[Any, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        now = time.monotonic()
        until, count = self._kinds.get(record.msg, (0.0, 0))
        left_out = 0
        if now >= until:
            until, count, left_out = now + self._seconds, 0, count - self._most
        self._kinds[record.msg] = until, count + 1
        if left_out > 0:
            record.msg = f"{record.msg} ({left_out} more were left out)"
        return count < self._most
