"""Requests that generate one value at a time take turns: a scheduler of generator functions, and ``generate()`` as a generator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import torch
from attrs import define

from omni_core.api import StagePayload
from omni_torch.api import StepScheduler

Compute = Callable[[StagePayload], Generator[Any, None, Any]]


@define(eq=False)
class _State:
    request_id: str
    value: Any = None
    result: Any = None
    done: bool = False


class Interleaved(StepScheduler[_State]):
    """Computes generator functions: each request's next value in turn, so that none waits for another's end.

    What a generator yields is streamed, unless it is ``None``; what it returns is the result. An abort closes it.

    Args:
        compute: a generator function of a payload.
        max_running: requests that have begun and not ended; further ones wait.
    """

    def __init__(self, compute: Compute, max_running: int = 8) -> None:
        super().__init__(1, max_running)
        self._compute = compute
        self._open: dict[str, Generator[Any, None, Any]] = {}

    def begin(self, payload: StagePayload) -> _State:
        self._open[payload.request_id] = self._compute(payload)
        return _State(payload.request_id)

    def key(self, state: _State) -> str:
        return state.request_id

    def step(self, states: list[_State]) -> list[_State]:
        [state] = states
        values = self._open.pop(state.request_id)  # none that has ended or failed stays
        try:
            state.value = next(values)
        except StopIteration as end:
            state.value, state.result, state.done = None, end.value, True
        else:
            self._open[state.request_id] = values
        return [state]

    def is_done(self, state: _State) -> bool:
        return state.done

    def progress(self, state: _State) -> Any:
        return state.value

    def finish(self, state: _State) -> Any:
        return state.result

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        if (values := self._open.pop(request_id, None)) is not None:
            values.close()


class _Closed(BaseException):
    """Ends the call in its thread. No ``except Exception`` of the library stops it."""


def in_turns(call: Callable[[Callable[[Any], None]], Any]) -> Generator[Any, None, Any]:
    """Run a call that reports values as a generator that yields them.

    It runs in a thread of its own, which waits while the generator's reader does something else: one of the two runs at any time.

    Args:
        call: is given ``report``, to be called with each value; when the generator was closed, that ends the call.

    Returns:
        What the call returns. What it raises is raised.
    """
    ours, its = threading.Semaphore(0), threading.Semaphore(0)
    given: list[Any] = []
    ended: list[Any] = []
    closed = False

    def report(value: Any) -> None:
        given.append(value)
        ours.release()
        its.acquire()
        if closed:
            raise _Closed

    def run() -> None:
        its.acquire()
        try:
            if not closed:
                with torch.inference_mode():
                    ended.append((call(report), None))
        except BaseException as error:
            ended.append((None, error))
        ours.release()

    thread = threading.Thread(target=run, name="generate", daemon=True)
    thread.start()
    try:
        while True:
            its.release()
            ours.acquire()
            if given:
                yield given.pop()
                continue
            [(value, error)] = ended
            if error is not None:
                raise error
            return value
    finally:
        closed = True
        its.release()
        thread.join()
        ended.clear()
