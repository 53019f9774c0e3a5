"""Lanes run the steps of one key in order, and steps of different keys independently, without a queue or a task per key.

A step is a coroutine function. It runs in the caller of :meth:`Lanes.run`; only if it has to wait does the rest of it become a
task. A step that waits for nothing costs no task and no turn of the event loop, and is written no differently.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from types import coroutine
from typing import Any, Generic, TypeVar

from omni_core.control.faults import watched

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

Running = Coroutine[Any, None, None]
Step = Callable[[], Running]


@coroutine
def in_task() -> Generator[None, None, None]:
    """Continue in a task of the event loop.

    A step must await this before it awaits anything else: until then it may run in any thread, outside of any task, and what it
    awaits may need both (``asyncio.timeout`` does).
    """
    yield


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call ``function`` in a thread, so that a long computation does not hold the event loop."""
    await in_task()
    return await asyncio.to_thread(function, *arguments)


class Tasks(set[asyncio.Future[Any]]):
    """Tasks that run beside their owner, which keeps them alive until they end. Their failures are logged."""

    def start(self, work: Awaitable[Any]) -> None:
        """Run ``work`` as a task."""
        task = watched(work, getattr(work, "__qualname__", "a task"))
        self.add(task)
        task.add_done_callback(self.discard)


class Lanes(Generic[Key]):
    """Runs steps in order per key. A step that waits holds its lane, and later steps of its key wait behind it.

    Args:
        on_error: called with the key and the exception of a step that failed. Later steps of the key are dropped.
        lock: held while a step runs, never while it waits; :meth:`run` may then be called from any thread.
        on_free: called when a lane becomes free in which a step had to wait.
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
        """Run ``step`` after every earlier step of ``key``. Raises nothing: errors go to ``on_error``."""
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.append(step)
                return
            running = step()
            try:
                running.send(None)
            except StopIteration:
                return
            except BaseException as error:
                self._on_error(key, error)
                return
            waiting = self._waiting[key] = deque()
            if threading.get_ident() == self._thread:
                self._begin(key, waiting, running)
            else:
                self._loop.call_soon_threadsafe(self._begin, key, waiting, running)

    def _begin(self, key: Key, waiting: deque[Step], running: Running) -> None:
        with self._lock:
            if self._waiting.get(key) is waiting:
                self._tasks[key] = self._loop.create_task(self._continue(key, waiting, running))
            else:  # cancelled on its way to the event loop
                running.close()

    async def _continue(self, key: Key, waiting: deque[Step], running: Running) -> None:
        try:
            while True:
                await _locked(running, self._lock)
                with self._lock:
                    if not waiting:
                        self._forget(key, waiting)
                        return
                    running = waiting.popleft()()
        except BaseException as error:
            with self._lock:
                if self._forget(key, waiting):
                    self._on_error(key, error)

    def _forget(self, key: Key, waiting: deque[Step]) -> bool:
        """Free the lane. Return False if it was cancelled before."""
        if self._waiting.get(key) is not waiting:
            return False
        del self._waiting[key]
        self._tasks.pop(key, None)
        self._on_free()
        return True

    def cancel(self, key: Key) -> None:
        """Drop every step of ``key``, the running one included unless it is the caller. On the event loop only."""
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is None:
                return
            waiting.clear()
            task = self._tasks.get(key)
            self._forget(key, waiting)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)


@coroutine
def _locked(step: Running, lock: threading.RLock) -> Generator[Any, None, None]:
    """Run a coroutine that may have begun already to its end, holding the lock while it runs but not while it waits."""
    raised: list[BaseException] = []
    while True:
        with lock:
            try:
                # Popped, so that no frame of an error's traceback holds the error: such a cycle keeps relay memory alive.
                waited = step.throw(raised.pop()) if raised else step.send(None)
            except StopIteration:
                return
        try:
            yield waited
        except BaseException as error:
            raised.append(error)
