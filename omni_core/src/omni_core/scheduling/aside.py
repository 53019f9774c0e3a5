"""Computes that take long for some requests and leave the interpreter to others meanwhile, as decoders of media do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_core.scheduling.loop import LoopScheduler
from omni_core.scheduling.simple import Compute, SimpleScheduler

T = TypeVar("T")


class Aside:
    """Threads for what takes long in a scheduler whose loop goes on, such as the recordings of its requests.

    Args:
        scheduler: its ``enter_thread``, if it has one, is called first in each thread.
        threads: how many computes run at once, which bounds their memory.
    """

    def __init__(self, scheduler: LoopScheduler, threads: int = 4) -> None:
        self._scheduler = scheduler
        self._running: dict[str, float] = {}
        self._threads: list[int] = []
        self._pool = ThreadPoolExecutor(threads, "aside", self._enter)

    def submit(self, request_id: str, compute: Callable[[], T]) -> Future[T]:
        """Compute aside. The end wakes the loop, without a message of a request."""
        made = self._pool.submit(self.timed, request_id, compute)
        made.add_done_callback(lambda _: self._scheduler.inbox.put(IncomingMessage("", "stream_done")))
        return made

    def timed(self, request_id: str, compute: Callable[[], T]) -> T:
        """Compute here, as one of :attr:`running`."""
        self._running[request_id] = time.monotonic()
        try:
            return compute()
        finally:
            self._running.pop(request_id, None)

    @property
    def running(self) -> dict[str, float]:
        """The requests that compute, for ``running_computes``. From any thread."""
        return dict(self._running)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of the threads, while they live."""
        return sum(time.clock_gettime(time.pthread_getcpuclockid(each)) for each in self._threads)

    def close(self) -> None:
        """End the threads, after what they compute."""
        self._threads = []  # their clocks end with them
        self._pool.shutdown(cancel_futures=True)

    def _enter(self) -> None:
        self._threads.append(threading.get_ident())
        getattr(self._scheduler, "enter_thread", lambda: None)()


class AsideScheduler(SimpleScheduler):
    """A :class:`SimpleScheduler` that computes long requests aside, in ``threads`` further threads, first come first served.

    The others are computed in the loop's own thread, so none waits for a long one. A request is one call of ``compute`` either way.

    Args:
        compute: payload to result, without generators; several threads call it at once.
        is_long: tells from a payload, at once and without raising, if its compute takes long.
        threads: how many long requests are computed at once, which bounds their memory.

    Attributes:
        enter_thread: called first in each further thread; see :class:`~omni_core.scheduling.base.Scheduler`.
    """

    def __init__(self, compute: Compute, is_long: Callable[[StagePayload], bool], threads: int = 4) -> None:
        super().__init__(compute)
        self._is_long = is_long
        self._aside: dict[str, float] = {}
        self._dropped: set[str] = set()
        self._ends = threading.Lock()
        self._threads = [
            threading.Thread(target=self._compute_aside, name=f"aside-{number}", daemon=True)
            for number in range(threads)
        ]
        self.enter_thread: Callable[[], None] = lambda: None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        super().start()
        for thread in self._threads:
            thread.join()

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        # It has left the inbox by now, and is noted as running if a thread had taken it.
        with self._ends:
            if request_id in self._aside:
                self._dropped.add(request_id)

    def statistics(self) -> dict[str, float]:
        found = super().statistics()
        clocks = [time.pthread_getcpuclockid(each.ident or 0) for each in self._threads if each.is_alive()]
        return {
            **found,
            "running": found["running"] + len(self._aside),
            "cpu_seconds": sum(map(time.clock_gettime, clocks)),
        }

    def running_computes(self) -> dict[str, float]:
        with self._ends:
            return {**self._running, **self._aside}

    def turn(self) -> bool:
        first = self.inbox.take(lambda message: not self._goes_aside(message))
        if first is None:
            return False
        if first.type == "new_request":
            self._run([first.data])
        self.drop_aborted()
        return True

    def _goes_aside(self, message: IncomingMessage) -> bool:
        return message.type == "new_request" and self._is_long(message.data)

    def _claims(self, message: IncomingMessage) -> bool:
        """Return if a message is for a thread aside, and note it as running: it is taken then."""
        if not self._goes_aside(message):
            return False
        with self._ends:
            self._aside[message.request_id] = time.monotonic()
        return True

    def _compute_aside(self) -> None:
        self.enter_thread()
        while self.turn_aside():
            continue

    def turn_aside(self) -> bool:
        """Wait for a long request and compute it; ``False`` at the end. One call, so that no frame keeps its payload."""
        message = self.inbox.take(self._claims)
        if message is None:
            return False
        self._finish(message.request_id, self._outcome(message.data))
        return True

    def _finish(self, request_id: str, outcome: OutgoingMessage) -> None:
        with self._ends:
            del self._aside[request_id]
            is_dropped = request_id in self._dropped
            self._dropped.discard(request_id)
            self._batches += 1
            self._computed += 1
        if not is_dropped:
            self.put_out(outcome)
