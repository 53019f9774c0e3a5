"""Order without queues: steps of one key run one after the other, at once where nothing has to be waited for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

Step = Callable[[], Awaitable[None] | None]


class Lanes:
    """Runs steps in order per key. A step that returns ``None`` is done; one that returns an awaitable holds its lane.

    Args:
        on_error: called with the key and the exception of a step that failed while it was awaited; a failure of a step
            that ran at once is raised to the caller of :meth:`run`.
    """

    def __init__(self, on_error: Callable[[str, BaseException], None]) -> None:
        self._waiting: dict[str, deque[Step]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._on_error = on_error

    def run(self, key: str, step: Step) -> None:
        """Run ``step`` after every earlier step of ``key``."""
        if key in self._waiting:
            self._waiting[key].append(step)
            return
        pending = step()
        if pending is not None:
            self._waiting[key] = deque()
            self._tasks[key] = asyncio.ensure_future(self._continue(key, pending))

    async def _continue(self, key: str, pending: Awaitable[None] | None) -> None:
        waiting = self._waiting[key]
        try:
            while True:
                if pending is not None:
                    await pending
                if not waiting:
                    break
                pending = waiting.popleft()()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._forget(key)
            self._on_error(key, error)
        else:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._waiting.pop(key, None)
        self._tasks.pop(key, None)

    def cancel(self, key: str) -> None:
        """Drop every step of ``key``, the running one included."""
        task = self._tasks.get(key)
        self._forget(key)
        if task is not None:
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)
