"""Order without queues: steps of one key run one after the other, at once where nothing has to be waited for."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Later = Callable[[], Awaitable[None]]
"""What of a step is left to be awaited. Not a coroutine yet: one that is cancelled before its turn was never begun."""

Step = Callable[[], Later | None]


class Lanes(Generic[Key]):
    """Runs steps in order per key. A step that returns ``None`` is done; one that returns a :data:`Later` holds its lane.

    Args:
        on_error: called with the key and the exception of a step that failed while it was awaited; a failure of a step
            that ran at once is raised to the caller of :meth:`run`.
        lock: held around every step and every look at the lanes; :meth:`run` may then be called from any thread.
        on_free: called when a lane is free again that something was waiting in.
    """

    def __init__(
        self,
        on_error: Callable[[Key, BaseException], None],
        lock: threading.RLock,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        self._waiting: dict[Key, deque[Step]] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._on_error = on_error
        self._on_free = on_free
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def run(self, key: Key, step: Step) -> None:
        """Run ``step`` after every earlier step of ``key``."""
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.append(step)
                return
            pending = step()
            if pending is None:
                return
            waiting = self._waiting[key] = deque()
            if threading.get_ident() == self._thread:
                self._begin(key, waiting, pending)
            else:
                self._loop.call_soon_threadsafe(self._begin, key, waiting, pending)

    def _begin(self, key: Key, waiting: deque[Step], pending: Later) -> None:
        with self._lock:
            if self._waiting.get(key) is waiting:  # else it was cancelled on the way here
                self._tasks[key] = asyncio.ensure_future(self._continue(key, waiting, pending))

    async def _continue(self, key: Key, waiting: deque[Step], pending: Later | None) -> None:
        try:
            while True:
                if pending is not None:
                    await pending()
                with self._lock:
                    if not waiting:
                        self._forget(key)
                        return
                    pending = waiting.popleft()()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            with self._lock:
                self._forget(key)
                self._on_error(key, error)

    def _forget(self, key: Key) -> None:
        self._tasks.pop(key, None)
        if self._waiting.pop(key, None) is not None:
            self._on_free()

    def cancel(self, key: Key) -> None:
        """Drop every step of ``key``, the running one included. On the event loop only."""
        with self._lock:
            task = self._tasks.get(key)
            self._forget(key)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)
