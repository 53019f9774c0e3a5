"""Simulated time: one clock, and an event loop for each simulated process. One thread runs all, in an order that a seed decides."""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from random import Random
from typing import Any

LONGEST_TURN = 2e-4
"""Seconds from a process's being ready to its turn, at most."""


class Handle:
    """A call that a loop will make, at a time if it is that of a timer."""

    __slots__ = ("_call", "_context", "_when", "is_cancelled")

    def __init__(self, when: float, call: Callable[[], object], context: Context | None) -> None:
        self._when = when
        self._call = call
        self._context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when

    def run(self) -> None:
        if self._context is None:
            self._call()
        else:
            self._context.run(self._call)


class Clock:
    """The time of a world in seconds, and what is to happen at which time.

    Attributes:
        current: the loop of the process that runs now.
    """

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.current: Loop | None = None
        self._random = random
        self._events: list[tuple[float, int, Loop, Handle | None]] = []
        self._count = 0

    def push(self, when: float, loop: Loop, handle: Handle | None) -> None:
        """Let a loop make a call at a time, or take its turn."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, loop, handle))

    def due(self, loop: Loop) -> None:
        """A loop has something to do: give it a turn soon, or when it is not frozen any more."""
        self.push(max(self.now + self._random.random() * LONGEST_TURN, loop.frozen_until), loop, None)

    def step(self) -> bool:
        """Let happen what is next. Return False if nothing is."""
        while self._events:
            when, _, loop, handle = heapq.heappop(self._events)
            if not loop.is_alive or (handle is not None and handle.is_cancelled):
                continue
            self.now = max(self.now, when)
            if handle is not None:
                loop.put(handle)
            elif self.now < loop.frozen_until:
                self.push(loop.frozen_until, loop, None)
            else:
                self.current = loop
                loop.turn()
                self.current = None
            return True
        return False


class Loop:
    """The event loop of one simulated process: what of asyncio's is used here. One that has died makes no call any more.

    Args:
        process: what owns the loop: what runs in it finds its process, and its world, by ``asyncio.get_running_loop()``.
        on_error: called with the context of an error that nobody has caught.
    """

    def __init__(self, clock: Clock, process: Any, on_error: Callable[[dict[str, Any]], None]) -> None:
        self._clock = clock
        self._on_error = on_error
        self._ready: deque[Handle] = deque()
        self._has_turn = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.process = process
        self.is_alive = True
        self.frozen_until = 0.0

    def end(self) -> None:
        """Make no call any more: the process has died. What its tasks held stays as it was."""
        self.is_alive = False
        self._ready.clear()

    def discard(self) -> None:
        """Close what the tasks were doing, now and in this loop: else garbage collection does, at any time and in any other."""
        self.end()
        events._set_running_loop(self)  # type: ignore[arg-type]
        try:
            for task in self._tasks:
                with suppress(BaseException):
                    task.get_coro().close()
        finally:
            events._set_running_loop(None)
        self._tasks.clear()

    def put(self, handle: Handle) -> None:
        """Add a call behind those that are ready."""
        if not self.is_alive:
            return
        self._ready.append(handle)
        if not self._has_turn:
            self._has_turn = True
            self._clock.due(self)

    def turn(self) -> None:
        """Make the calls that are ready now."""
        ready, self._ready = self._ready, deque()
        events._set_running_loop(self)  # type: ignore[arg-type]
        try:
            for handle in ready:
                if not handle.is_cancelled and self.is_alive:
                    try:
                        handle.run()
                    except BaseException as error:
                        self.call_exception_handler({"message": "a callback has failed", "exception": error})
        finally:
            events._set_running_loop(None)
        self._has_turn = bool(self._ready)
        if self._has_turn:
            self._clock.due(self)

    def time(self) -> float:
        return self._clock.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(self._clock.now, lambda: callback(*args), context)
        self.put(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(when, lambda: callback(*args), context)
        self._clock.push(when, self, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task", context=context)  # type: ignore[arg-type]
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> asyncio.Future[Any]:
        """Call the function later in the loop itself: there are no threads."""
        future = self.create_future()

        def call() -> None:
            if not future.done():
                try:
                    future.set_result(function(*args))
                except BaseException as error:
                    future.set_exception(error)

        self.call_later(LONGEST_TURN, call)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._clock.current is self

    def is_closed(self) -> bool:
        return not self.is_alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_alive:
            self._on_error(context)
