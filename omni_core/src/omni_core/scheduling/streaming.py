"""The base of streaming schedulers: per-request state, fed chunk by chunk (seed 002, "Code2WavScheduler").

A subclass says what a chunk does to a state; the base owns the loop, the order of events, containment and aborts.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from attrs import define, field

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage

State = TypeVar("State")

_WAKE = IncomingMessage("", "stream_done")


@define
class _Progress(Generic[State]):
    """How far a request's inputs have come."""

    state: State
    payload_source: str | None = None
    has_payload: bool = False
    done: set[str | None] = field(factory=set)


class StreamingScheduler(ABC, Generic[State]):
    """Consumes streams. A request begins with its first message of any type, and is finished once its payload and the
    end of every source's stream have come.

    Args:
        sources: the stages that stream to this one; by default, the one stage that also sends the payload.
    """

    def __init__(self, sources: tuple[str, ...] = ()) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self._sources = sources
        self._requests: dict[str, _Progress[State]] = {}
        self._aborted: set[str] = set()
        self._lock = threading.Lock()

    # --- what a subclass says --------------------------------------------------------------------------------------
    @abstractmethod
    def new_state(self, request_id: str, request: OmniRequest | None) -> State:
        """The state of a request whose first message has come."""

    def on_payload(self, state: State, payload: StagePayload) -> None:
        """The request's payload, which may come before, between or after its chunks."""

    @abstractmethod
    def on_chunk(self, state: State, chunk: Any, metadata: dict[str, Any] | None) -> None:
        """One chunk, in order."""

    def step(self, states: dict[str, State]) -> dict[str, BaseException]:
        """Work over every request that got a message in this round, batched where it helps.

        Returns the errors of the requests that failed. May emit.
        """
        return {}

    @abstractmethod
    def finish(self, request_id: str, state: State) -> Any:
        """Flush: everything has come. Returns the result's data. May emit before it returns."""

    def emit(self, request_id: str, data: Any, target: str | None = None) -> None:
        """Stream a partial result."""
        with self._lock:
            if request_id in self._aborted:
                return
        self.outbox.put(OutgoingMessage(request_id, "stream", data, target))

    # --- the scheduler contract ------------------------------------------------------------------------------------
    def start(self) -> None:
        while self._serve_once():
            continue

    def _serve_once(self) -> bool:
        """Wait for messages and handle them. Its own function, so that an idle scheduler keeps no chunk alive."""
        message = self.inbox.get()
        if message is None:
            return False
        touched: dict[str, None] = {}
        for each in [message, *self.inbox.drain()]:
            if self._take(each):
                touched[each.request_id] = None
        # Not before: what was drained together with an aborted request's state must not begin it anew.
        self._drop_aborted()
        self._advance(list(touched))
        return True

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)
        with self._lock:
            self._aborted.add(request_id)
        self.inbox.put(_WAKE)  # only the loop's thread touches states, so it has to drop this one

    def statistics(self) -> dict[str, float]:
        return {"waiting": float(len(self.inbox)), "running": float(len(self._requests))}

    def _drop_aborted(self) -> None:
        with self._lock:
            aborted, self._aborted = self._aborted, set()
        for request_id in aborted:
            self._requests.pop(request_id, None)

    def _take(self, message: IncomingMessage) -> bool:
        request_id = message.request_id
        if not message.request_id:  # _WAKE, or what another rank was sent of it
            return False
        with self._lock:
            if request_id in self._aborted:
                return False
        try:
            progress = self._requests.get(request_id)
            if progress is None:
                progress = self._requests[request_id] = _Progress(self.new_state(request_id, message.request))
            if message.type == "stream_chunk":
                self.on_chunk(progress.state, message.data, message.metadata)
            elif message.type == "stream_done":
                progress.done.add(message.source)
            else:
                progress.has_payload, progress.payload_source = True, message.source
                self.on_payload(progress.state, message.data)
        except BaseException as error:
            self._fail(request_id, error)
            return False
        return True

    def _advance(self, touched: list[str]) -> None:
        states = {name: self._requests[name].state for name in touched if name in self._requests}
        try:
            failures = self.step(states)
        except BaseException as error:
            failures = dict.fromkeys(states, error)
        for request_id, failure in failures.items():
            self._fail(request_id, failure)
        for request_id in states:
            progress = self._requests.get(request_id)
            if progress is None or not self._complete(progress):
                continue
            try:
                result = self.finish(request_id, progress.state)
            except BaseException as error:
                self._fail(request_id, error)
                continue
            del self._requests[request_id]
            self._put(OutgoingMessage(request_id, "result", result))

    def _complete(self, progress: _Progress[State]) -> bool:
        needed: set[str | None] = set(self._sources) or {progress.payload_source}
        return progress.has_payload and needed <= progress.done

    def _fail(self, request_id: str, error: BaseException) -> None:
        self._requests.pop(request_id, None)
        self._put(OutgoingMessage(request_id, "error", error))

    def _put(self, message: OutgoingMessage) -> None:
        with self._lock:
            if message.request_id in self._aborted:
                return
        self.outbox.put(message)
