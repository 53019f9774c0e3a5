"""The scheduler of requests that take many steps of one kind, such as denoising: batches are formed anew at every step.

A request joins the others at the next step, whatever step they are at, and leaves when it is done; nobody waits for the longest.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, Generic, TypeVar

from omni_core.api import (
    ConfigError,
    IncomingMessage,
    LoopScheduler,
    OutgoingMessage,
    StagePayload,
    pausing,
    take_pausing,
)

State = TypeVar("State")

OVERTAKEN_BY = 2
"""A request may be overtaken by work that begins while the stage does this many times the request's own."""


class StepScheduler(LoopScheduler, Generic[State]):
    """``begin -> step, step, ... -> finish`` for each request, with the steps of several requests in one call.

    The state that is due first chooses the next batch: itself and others with an equal :meth:`key`, in that order. Where a subclass
    says how much :meth:`work` a request is, a request is due when the stage has done :data:`OVERTAKEN_BY` times as much since it began:
    short ones end first, which keeps the mean wait short, and a long one is overtaken by those alone that begin before it is due. Without
    it, the first is the state that has waited longest for a step: requests of every key make progress, and take turns.

    The input of a request may be a stream: :meth:`receive` gets its chunks, and :meth:`can_step` tells if there is something to do. A
    request that waits for more of its input is none of the running ones.

    Args:
        max_batch_size: states that one call of :meth:`step` gets at most.
        max_running: requests that have begun and are not done; further ones wait. By default four batches.

    Raises:
        ConfigError: a limit below 1.
    """

    def __init__(self, max_batch_size: int = 8, max_running: int | None = None) -> None:
        super().__init__()
        self._max_batch_size = max_batch_size
        self._max_running = 4 * max_batch_size if max_running is None else max_running
        for name, value in (("max_batch_size", max_batch_size), ("max_running", self._max_running)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: must be a whole number of requests, 1 or more, is {value!r}")
        self._payloads: dict[str, StagePayload | Callable[[], StagePayload]] = {}
        """Of requests that have not begun."""
        self._idle: dict[str, State] = {}
        """The states of those that have begun, and wait for more of their input or, behind others, for their turn."""
        self._ready: dict[str, None] = {}
        """Requests of both kinds that can begin or go on, in that order."""
        self._states: dict[str, State] = {}
        self._keys: dict[str, Hashable] = {}
        self._due: dict[str, tuple[float, int]] = {}
        self._done_work = 0.0
        self._begun = 0
        self._computing: dict[str, float] = {}
        self._paused: set[str] = set()
        self._steps = self._stepped = self._computed = 0

    @abstractmethod
    def begin(self, payload: StagePayload) -> State:
        """Return the state of a request before its first step."""

    @abstractmethod
    def key(self, state: State) -> Hashable:
        """Return what states must have equal to be stepped together, such as the shape of their tensors."""

    @abstractmethod
    def step(self, states: list[State]) -> list[State]:
        """Return the states after one step, in order. The given ones must stay as they are: if this raises, each is stepped alone."""

    @abstractmethod
    def is_done(self, state: State) -> bool:
        """Return whether no step is left."""

    @abstractmethod
    def finish(self, state: State) -> Any:
        """Return the result's data."""

    def work(self, state: State) -> float:
        """Return the work that is left, in any unit, such as steps times positions; 0: requests take turns."""
        return 0.0

    def progress(self, state: State) -> Any:
        """Return what is streamed after a step, such as its number or a preview; ``None``: nothing."""
        return None

    def receive(self, message: IncomingMessage) -> None:
        """Take a message of a request: ``new_request``, which is admitted; chunks of its input, their end. Its error is the request's."""
        if isinstance(message.data, StagePayload):
            self.admit(message.request_id, message.data)

    def admit(self, request_id: str, payload: StagePayload | Callable[[], StagePayload]) -> None:
        """Begin a request when it can step and there is room for it.

        A subclass may begin one again after its result, if it keeps that from the outbox.

        Args:
            payload: it, or what makes it when the request begins.
        """
        self._payloads[request_id] = payload
        if self.can_step(request_id):
            self._ready[request_id] = None

    def can_step(self, request_id: str) -> bool:
        """Return whether a request can begin or go on, as far as its input is there. Asked after each message and step of it."""
        return True

    def turn(self) -> bool:
        can_begin = self._ready and len(self._states) < self._max_running
        if self._paused.issuperset(self._states) and not can_begin:
            first = self.inbox.get()
            if first is None:
                return False
            self._take(first)
        elif self.inbox.closed:
            return False
        for message in self.inbox.drain():
            self._take(message)
        self.drop_aborted()
        while self._ready and len(self._states) < self._max_running:
            request_id = next(iter(self._ready))
            del self._ready[request_id]
            self._begin(request_id)
        self._step()
        self.drop_aborted()
        return True

    def statistics(self) -> dict[str, float]:
        """Return counters; ``stepped`` divided by ``steps`` is the mean size of a batch."""
        return {
            "waiting": float(len(self.inbox) + len(self._payloads) + len(self._idle)),
            "running": float(len(self._states)),
            "steps": float(self._steps),
            "stepped": float(self._stepped),
            "computed": float(self._computed),
        }

    def running_computes(self) -> dict[str, float]:
        """Return the requests of the running step, with the ``time.monotonic()`` of its begin. From any thread."""
        return self._computing

    def forget(self, request_id: str) -> None:
        self._remove(request_id)

    def pause(self, request_id: str, paused: bool) -> None:
        """Leave a request out of the steps, or take it in again. From any thread."""
        self.inbox.put(pausing(request_id, paused))

    def _take(self, message: IncomingMessage) -> None:
        take_pausing(message, self._paused)
        request_id = message.request_id
        if not request_id or self.is_aborted(request_id):
            return
        try:
            self.receive(message)
            if (request_id in self._payloads or request_id in self._idle) and self.can_step(request_id):
                self._ready[request_id] = None
        except BaseException as error:
            self.forget(request_id)
            self._fail(request_id, error)

    def _begin(self, request_id: str) -> None:
        self._computing = {request_id: time.monotonic()}
        try:
            if request_id in self._idle:
                state = self._idle.pop(request_id)
            else:
                payload = self._payloads.pop(request_id)
                state = self.begin(payload() if callable(payload) else payload)
                work, self._begun = self.work(state), self._begun + 1
                self._due[request_id] = (self._done_work + OVERTAKEN_BY * work, self._begun) if work else (0.0, 0)
            self._keep(request_id, state)
        except BaseException as error:
            self._fail(request_id, error)
        self._computing = {}

    def _step(self) -> None:
        batch = self._batch()
        if not batch:
            return
        failures: dict[str, BaseException] = {}
        stepped = self._stepped_together(batch, failures) if len(batch) > 1 else None
        if stepped is None:
            stepped = {}
            for request_id in batch:
                if not self.is_aborted(request_id):
                    stepped |= self._stepped_together([request_id], failures) or {}
        for request_id in list(failures):  # no frame of an error's traceback may keep the error
            self._fail(request_id, failures.pop(request_id))
        while stepped:
            request_id = next(iter(stepped))
            self._after_step(request_id, stepped.pop(request_id))

    def _batch(self) -> list[str]:
        ready = [each for each in self._keys if each not in self._paused]
        by_time = sorted(ready, key=self._due.__getitem__)  # without work: in the order of their last steps
        same = (each for each in by_time if each is by_time[0] or _are_equal(self._keys[each], self._keys[by_time[0]]))
        return list(islice(same, self._max_batch_size))

    def _stepped_together(self, batch: list[str], failures: dict[str, BaseException]) -> dict[str, State] | None:
        """Return the states of a batch after a step; ``None`` if it fails, with the error of a batch of one in ``failures``."""
        self._computing = dict.fromkeys(batch, time.monotonic())
        try:
            before = [self._states[request_id] for request_id in batch]
            states = self.step(before)
            if len(states) != len(batch):
                raise ValueError(f"step returned {len(states)} states for {len(batch)}")
            done = sum(map(self.work, before)) - sum(map(self.work, states))
        except BaseException as error:
            if len(batch) == 1:
                failures[batch[0]] = error
            return None
        finally:
            self._computing = {}
        self._steps += 1
        self._stepped += len(batch)
        self._done_work += done
        return dict(zip(batch, states, strict=True))

    def _after_step(self, request_id: str, state: State) -> None:
        if self.is_aborted(request_id):
            return
        try:
            shown = self.progress(state)
            if shown is not None:
                self.put_out(OutgoingMessage(request_id, "stream", shown))
            self._keep(request_id, state)
        except BaseException as error:
            self._fail(request_id, error)

    def _keep(self, request_id: str, state: State) -> None:
        """Keep a state for its next step, behind others that take turns with it, or for more of its input; or finish it."""
        self._keys.pop(request_id, None)
        if not self.is_done(state):
            if self.can_step(request_id):
                self._keys[request_id], self._states[request_id] = self.key(state), state
            else:
                self._states.pop(request_id, None)
                self._idle[request_id] = state
            return
        self._remove(request_id)
        result = self.finish(state)
        self._computed += 1
        self.put_out(OutgoingMessage(request_id, "result", result))

    def _remove(self, request_id: str) -> None:
        kept: tuple[dict[str, Any], ...] = (
            self._payloads,
            self._idle,
            self._ready,
            self._states,
            self._keys,
            self._due,
        )
        for each in kept:
            each.pop(request_id, None)

    def _fail(self, request_id: str, error: BaseException) -> None:
        self._remove(request_id)
        self.put_out(OutgoingMessage(request_id, "error", error))


def _are_equal(key: Hashable, other: Hashable) -> bool:
    """Return whether two requests may share a step. A key is anyone's object: one that cannot be compared has its steps alone."""
    try:
        return bool(key == other)
    except BaseException:
        return False
