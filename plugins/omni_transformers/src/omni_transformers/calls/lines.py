"""Requests that run in threads of their own, one at a time, and stop where they need something that is computed for several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from contextvars import copy_context
from typing import Any

import torch

from omni_core.api import StagePayload

Compute = Callable[[StagePayload], Generator[Any, None, Any]]


_next, _running = threading.Lock(), threading.Lock()


@contextmanager
def turn_in_process() -> Iterator[None]:
    """Let no other stage of this process run requests meanwhile: they share PyTorch's random numbers, and perhaps a model.

    The stage that waits is the next one, not the one that runs again at once.
    """
    with _next:
        _running.acquire()
    try:
        yield
    finally:
        _running.release()


class Closed(BaseException):
    """Ends the code of a request in its thread. No ``except Exception`` of the library stops it."""


class Baton:
    """Two threads of which one runs at any time."""

    def __init__(self) -> None:
        self._first, self._second = threading.Semaphore(0), threading.Semaphore(0)

    def run_second(self) -> None:
        """Let the second run until it calls :meth:`run_first`. In the first."""
        self._second.release()
        self._first.acquire()

    def run_first(self) -> None:
        """Let the first run until it calls :meth:`run_second`. In the second."""
        self._first.release()
        self._second.acquire()

    def await_first(self) -> None:
        """Wait for the first call of :meth:`run_second`. In the second, at its beginning."""
        self._second.acquire()

    def leave(self) -> None:
        """Let the first run for good. In the second, at its end."""
        self._first.release()


class Line:
    """A request: a generator in a thread of its own, which runs while its scheduler waits, and the other way round.

    Args:
        around: makes a context in which the generator runs, of the line.
        gpus: the random numbers of these are the request's own too.

    Attributes:
        values: what it has yielded, but ``None``; the scheduler takes them.
        call: what it waits for; ``None``: it can go on.
        ready: the last call that was computed.
        result: of the generator, when it is ``done``.
        error: that of the generator.
    """

    def __init__(
        self,
        compute: Compute,
        payload: StagePayload,
        around: Callable[[Line], AbstractContextManager[Any]],
        gpus: Sequence[torch.device] = (),
    ) -> None:
        self.request_id = payload.request_id
        self.values: list[Any] = []
        self.call: Any = None
        self.ready: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self._compute, self._payload, self._around, self._gpus = compute, payload, around, gpus
        self._baton, self._closed = Baton(), False
        self._thread = threading.Thread(target=self._run, name=f"line {self.request_id}", daemon=True)

    def resume(self) -> None:
        """Let it run until it yields, waits for a call, or ends."""
        if not self._thread.ident:
            try:
                self._thread.start()
            except RuntimeError as error:  # the system has no further thread
                self.error, self.done = error, True
                return
        self._baton.run_second()

    def wait(self, call: Any) -> None:
        """Return when ``call`` was computed. In a thread of the request, whose random numbers no other request draws meanwhile.

        Raises:
            Closed: the request has ended.
        """
        self.call = call
        with torch.random.fork_rng(self._gpus):
            self._baton.run_first()
        if self._closed:
            raise Closed

    def close(self) -> None:
        """End it, wherever it is."""
        self._closed = True
        while self._thread.ident and not self.done:
            self.resume()
        if self._thread.ident:
            self._thread.join()

    def _run(self) -> None:
        self._baton.await_first()
        try:
            with self._around(self), closing(self._compute(self._payload)) as values:
                while not self._closed:
                    try:
                        value = next(values)
                    except StopIteration as end:
                        self.result = end.value
                        break
                    if value is not None:
                        self.values.append(value)
                    self._baton.run_first()
        except Closed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._baton.leave()


def in_turns(call: Callable[[Callable[[Any], None]], Any]) -> Generator[Any, None, Any]:
    """Run a call that reports values as a generator that yields them.

    It runs in a thread of its own, which waits while the generator's reader does something else: one of the two runs at any time.

    Args:
        call: is given ``report``, to be called with each value; when the generator was closed, that ends the call.

    Returns:
        What the call returns. What it raises is raised.
    """
    baton = Baton()
    given: list[Any] = []
    ended: list[Any] = []
    closed = False

    def report(value: Any) -> None:
        given.append(value)
        baton.run_first()
        if closed:
            raise Closed

    def run() -> None:
        baton.await_first()
        try:
            if not closed:
                with torch.inference_mode():
                    ended.append((call(report), None))
        except BaseException as error:
            ended.append((None, error))
        baton.leave()

    thread = threading.Thread(target=copy_context().run, args=(run,), name="generate", daemon=True)
    thread.start()
    try:
        while True:
            baton.run_second()
            if given:
                yield given.pop()
                continue
            [(value, error)] = ended
            if error is not None:
                raise error
            return value
    finally:
        closed = True
        while not ended and thread.is_alive():
            baton.run_second()
        thread.join()
        ended.clear()
