"""The base of streaming schedulers: per-request state, fed chunk by chunk.

A subclass defines what a chunk does to a state; the base owns the loop, the order of events, containment and aborts.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from attrs import define, field

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_core.scheduling.loop import LoopScheduler

State = TypeVar("State")


@define
class _Progress(Generic[State]):
    """The inputs of a request that have come so far."""

    state: State
    payload_source: str | None = None
    has_payload: bool = False
    done: set[str | None] = field(factory=set)


class StreamingScheduler(LoopScheduler, Generic[State]):
    """Consumes streams. A request begins with its first message of any type, and is finished once its payload and the
    end of every source's stream have come.

    Args:
        sources: the stages whose streams must end before a request is finished; by default, the one stage that also sends
            the payload. Every request waits for each of them: do not name a stage that some route leaves out. A request
            that waits in vain ends at its ``timeout``, and the message names the sources that it waited for.

    Attributes:
        unfinished: the requests that :meth:`step` left work of; they are given to the next one too, and not finished before.
        wait: seconds that the next turn waits for a message, set by :meth:`step`; ``None``: until one comes.
    """

    def __init__(self, sources: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.unfinished: dict[str, None] = {}
        self.wait: float | None = None
        self._sources = sources
        self._requests: dict[str, _Progress[State]] = {}

    @abstractmethod
    def new_state(self, request_id: str, request: OmniRequest | None) -> State:
        """Make the state of a request whose first message has come."""

    def on_payload(self, state: State, payload: StagePayload) -> None:
        """Take the request's payload, which may come before, between or after its chunks."""

    @abstractmethod
    def on_chunk(self, state: State, chunk: Any, metadata: dict[str, Any] | None) -> None:
        """Take one chunk. Chunks come in order."""

    def step(self, states: dict[str, State]) -> dict[str, BaseException]:
        """Work over every request that got a message in this round or is ``unfinished``, batched where it helps.

        Returns the errors of the requests that failed. May emit.
        """
        return {}

    @abstractmethod
    def finish(self, request_id: str, state: State) -> Any:
        """Flush: everything has come. Returns the result's data. May emit before it returns."""

    def emit(self, request_id: str, data: Any, target: str | None = None) -> None:
        """Stream a partial result."""
        self.put_out(OutgoingMessage(request_id, "stream", data, target))

    def turn(self) -> bool:
        message = self.inbox.get(self.wait)
        if message is None and (self.wait is None or self.inbox.closed):
            return False
        touched, self.wait = dict(self.unfinished), None
        for each in [*([message] if message else []), *self.inbox.drain()]:
            if self._take(each):
                touched[each.request_id] = None
        # Not before: what was drained together with an aborted request's state must not begin it anew.
        self.drop_aborted()
        self._advance(list(touched))
        return True

    def statistics(self) -> dict[str, float]:
        return {"waiting": float(len(self.inbox)), "running": float(len(self._requests))}

    def waiting(self, request_id: str) -> str:
        """Name the inputs that a request waits for, for a message; empty if there are none. From any thread."""
        progress = self._requests.get(request_id)
        if progress is None:
            return ""
        missing = [] if progress.has_payload else ["its payload"]
        open_sources = sorted(str(source) for source in self._needed(progress) - progress.done if source is not None)
        missing += [f"the end of the stream from {source!r}" for source in open_sources]
        return " and ".join(missing)

    @property
    def running(self) -> int:
        """Return how many requests have begun and are not finished."""
        return len(self._requests)

    def state_of(self, request_id: str) -> State:
        """Return the state of a request that has begun."""
        return self._requests[request_id].state

    def is_whole(self, request_id: str) -> bool:
        """Return whether everything of a request has come."""
        return self._complete(self._requests[request_id])

    def forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self.unfinished.pop(request_id, None)

    def _take(self, message: IncomingMessage) -> bool:
        request_id = message.request_id
        if not request_id or self.is_aborted(request_id):
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
        for request_id in list(failures):  # no frame of an error's traceback may keep the error
            self._fail(request_id, failures.pop(request_id))
        for request_id in states:
            progress = self._requests.get(request_id)
            if progress is None or request_id in self.unfinished or not self._complete(progress):
                continue
            try:
                result = self.finish(request_id, progress.state)
            except BaseException as error:
                self._fail(request_id, error)
                continue
            self.forget(request_id)
            self.put_out(OutgoingMessage(request_id, "result", result))

    def _complete(self, progress: _Progress[State]) -> bool:
        return progress.has_payload and self._needed(progress) <= progress.done

    def _needed(self, progress: _Progress[State]) -> set[str | None]:
        return set(self._sources) or {progress.payload_source}

    def _fail(self, request_id: str, error: BaseException) -> None:
        self.forget(request_id)
        self.put_out(OutgoingMessage(request_id, "error", error))
