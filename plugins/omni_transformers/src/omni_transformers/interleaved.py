"""A scheduler of generator functions: requests take turns value by value, and calls of one decoder are computed together."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from omni_core.api import OutgoingMessage, StagePayload
from omni_torch.api import StepScheduler
from omni_transformers.calls.batch import Calls
from omni_transformers.calls.lines import Compute, Line, turn_in_process


class Interleaved(StepScheduler[Line]):
    """Computes generator functions: each request's next value in turn, so that none waits for another's end.

    What a generator yields is streamed, unless it is ``None``; what it returns is the result. An abort closes it.

    Args:
        compute: a generator function of a payload.
        max_running: requests that have begun and not ended; further ones wait.
        calls: computes the calls of their decoder as one batch; ``None``: each computes its own.
    """

    def __init__(self, compute: Compute, max_running: int = 8, calls: Calls | None = None) -> None:
        super().__init__(1 if calls is None else max_running, max_running)
        self._compute, self._calls = compute, calls
        self._open: dict[str, Line] = {}

    def start(self) -> None:
        """Compute until :meth:`stop`; then end the requests that are left."""
        try:
            super().start()
        finally:
            for request_id in [*self._open]:
                self.forget(request_id)

    def begin(self, payload: StagePayload) -> Line:
        if self._calls is None:
            line = Line(self._compute, payload, lambda line: nullcontext())
        else:
            line = Line(self._compute, payload, self._calls.taken_from, self._calls.gpus)
        self._open[payload.request_id] = line
        return line

    def key(self, state: Line) -> str:
        return state.request_id if self._calls is None else "together"

    def step(self, states: list[Line]) -> list[Line]:
        with turn_in_process():
            for line in states:
                self._advance(line)
            if self._calls is not None:
                self._calls.compute([line for line in states if line.call is not None])
        return states

    def _advance(self, line: Line) -> None:
        """Let a request run until it needs a call; one that needs none, until its next value."""
        while line.call is None or line.call.done:
            called, line.call = line.call is not None, None
            line.resume()
            for value in line.values:
                if not self.is_aborted(line.request_id):
                    self.put_out(OutgoingMessage(line.request_id, "stream", value))
            line.values.clear()
            if line.done or (line.call is None and not called):
                return

    def is_done(self, state: Line) -> bool:
        return state.done

    def finish(self, state: Line) -> Any:
        self._open.pop(state.request_id, None)
        if self._calls is not None:
            self._calls.forget(state)
        error, state.error = state.error, None
        if error is None:
            return state.result
        try:
            raise error
        finally:
            del error  # which would keep this frame

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        if (line := self._open.pop(request_id, None)) is not None:
            with turn_in_process():
                line.close()
            if self._calls is not None:
                self._calls.forget(line)
