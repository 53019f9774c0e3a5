"""The coordinator: admits requests, tracks their states, merges terminal stages, resolves clients (seed 002).

It talks to stages by messages only and knows none of their insides. A non-streaming request is a stream of which only
the final events are kept.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Any

from attrs import define, field, frozen

from omni_core.errors import (
    ConfigError,
    InvalidRequestError,
    OmniError,
    OverloadedError,
    RequestAbortedError,
    RequestFailedError,
)
from omni_core.protocol.codec import decode, encode
from omni_core.protocol.messages import (
    AbortMessage,
    CompleteMessage,
    ErrorInfo,
    OmniRequest,
    StagePayload,
    StreamMessage,
    SubmitMessage,
)
from omni_core.references import load

logger = logging.getLogger(__name__)

MAX_UNREAD_EVENTS = 10_000
"""Events that may wait for one streaming client before its request fails: a bound on what a slow reader can hold."""

REMEMBERED_IDS = 20_000


class RequestState(Enum):
    """Where a request is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


@frozen
class StreamEvent:
    """One result for a client: partial (``final`` is false), or the whole result of a terminal stage."""

    stage: str
    data: Any
    final: bool


@define(eq=False)
class _Tracked:
    """One request that has not ended."""

    request_id: str
    terminals: set[str]
    state: RequestState = RequestState.PENDING
    events: deque[StreamEvent] = field(factory=deque)
    changed: asyncio.Event = field(factory=asyncio.Event)
    error: OmniError | None = None

    @property
    def over(self) -> bool:
        return self.state in (RequestState.COMPLETED, RequestState.FAILED, RequestState.ABORTED)


class Coordinator:
    """Routes requests of one pipeline. All methods are called from one event loop.

    Args:
        entry_stage, terminal_stages: names.
        terminal_stages_fn: reference of ``(request) -> subset of terminal_stages | None``.
        send_to_stage: queues a message for the process that hosts a stage.
        broadcast: sends a message to every process.
        max_in_flight: requests held at once; more are refused with :class:`OverloadedError`.
    """

    def __init__(
        self,
        *,
        entry_stage: str,
        terminal_stages: list[str],
        terminal_stages_fn: str | None,
        send_to_stage: Callable[[str, Any], None],
        broadcast: Callable[[Any], None],
        max_in_flight: int = 256,
    ) -> None:
        self._entry_stage = entry_stage
        self._terminal_stages = terminal_stages
        self._terminal_stages_fn = load(terminal_stages_fn) if terminal_stages_fn else None
        self._send_to_stage = send_to_stage
        self._broadcast = broadcast
        self._max_in_flight = max_in_flight
        self._tracked: dict[str, _Tracked] = {}
        self._ended: OrderedDict[str, RequestState] = OrderedDict()
        self._failure: str | None = None

    # --- for clients -------------------------------------------------------------------------------------------------
    async def submit(self, request: OmniRequest, request_id: str | None = None) -> dict[str, Any]:
        """Run a request; the results of its terminal stages by name.

        Raises:
            OverloadedError: the pipeline is full. InvalidRequestError: the request is refused.
            RequestFailedError: it failed in a stage. RequestAbortedError: somebody aborted it.
        """
        results = {}
        async for event in self.stream(request, request_id):
            if event.final:
                results[event.stage] = event.data
        return results

    async def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncIterator[StreamEvent]:
        """Run a request; its partial results (if ``request.stream``) and final ones as they come.

        Leaving the iteration early aborts the request. Raises as :meth:`submit`.
        """
        tracked = self._admit(request, request_id)
        deadline = None if request.timeout is None else asyncio.get_running_loop().time() + request.timeout
        try:
            while True:
                while tracked.events:
                    yield tracked.events.popleft()
                if tracked.error is not None:
                    raise tracked.error
                if tracked.over:
                    return
                tracked.changed.clear()
                await self._changed(tracked, deadline, request.timeout)
        finally:
            if not tracked.over:
                self.abort(tracked.request_id)

    async def _changed(self, tracked: _Tracked, deadline: float | None, timeout: float | None) -> None:
        """Wait for news of a request. Only this wait is under its deadline: never the client's own code between two events."""
        try:
            async with asyncio.timeout_at(deadline):
                await tracked.changed.wait()
        except TimeoutError:
            raise RequestFailedError(
                tracked.request_id, None, "TimeoutError", f"not finished within its timeout of {timeout} s"
            ) from None

    def abort(self, request_id: str) -> None:
        """Drop the request everywhere. Idempotent; an id that is not running is ignored."""
        tracked = self._tracked.get(request_id)
        if tracked is not None:
            error = RequestAbortedError(f"request {request_id} was aborted")
            self._finish(tracked, RequestState.ABORTED, error)

    def state(self, request_id: str) -> RequestState | None:
        """The state of a request that runs or has recently ended; ``None`` for an id never seen (or long ago)."""
        tracked = self._tracked.get(request_id)
        return tracked.state if tracked is not None else self._ended.get(request_id)

    @property
    def in_flight(self) -> int:
        return len(self._tracked)

    def _admit(self, request: OmniRequest, request_id: str | None) -> _Tracked:
        if self._failure is not None:
            raise RequestFailedError(request_id or "-", None, "PipelineDown", self._failure)
        name = request_id or uuid.uuid4().hex
        if name in self._tracked or name in self._ended:
            raise InvalidRequestError(f"request id {name!r} was used before; give each request an id of its own")
        if len(self._tracked) >= self._max_in_flight:
            raise OverloadedError(f"{len(self._tracked)} requests are in flight, the limit; retry later")
        body = encode(StagePayload(name, request, None))
        tracked = self._tracked[name] = _Tracked(name, self._terminals_of(request))
        try:
            self._send_to_stage(self._entry_stage, SubmitMessage(name, self._entry_stage, body))
        except BaseException:
            del self._tracked[name]
            raise
        tracked.state = RequestState.RUNNING
        return tracked

    def _terminals_of(self, request: OmniRequest) -> set[str]:
        if self._terminal_stages_fn is None:
            return set(self._terminal_stages)
        names = self._terminal_stages_fn(request)
        if names is None:
            return set(self._terminal_stages)
        chosen = {names} if isinstance(names, str) else set(names)
        if not chosen or not chosen <= set(self._terminal_stages):
            raise ConfigError(f"terminal_stages_fn returned {names!r}; it must be a subset of {self._terminal_stages}")
        return chosen

    # --- for the runner ----------------------------------------------------------------------------------------------
    def handle(self, message: CompleteMessage | StreamMessage) -> None:
        """A stage's message about a request. One for a request that has ended is dropped."""
        tracked = self._tracked.get(message.request_id)
        if tracked is None:
            return
        if isinstance(message, CompleteMessage) and message.error is not None:
            self._fail(tracked, message.error)
            return
        try:
            data = decode(message.body or b"\xc0")
        except OmniError as error:
            self._fail(tracked, ErrorInfo(message.from_stage, type(error).__name__, str(error)))
            return
        if message.from_stage not in tracked.terminals:
            return  # a terminal stage that this request did not ask for
        final = isinstance(message, CompleteMessage)
        tracked.events.append(StreamEvent(message.from_stage, data, final))
        if final:
            tracked.terminals.discard(message.from_stage)
            if not tracked.terminals:
                self._finish(tracked, RequestState.COMPLETED, None)
        elif len(tracked.events) > MAX_UNREAD_EVENTS:
            info = ErrorInfo(
                message.from_stage, "SlowReader", f"the client has left {MAX_UNREAD_EVENTS} partial results unread"
            )
            self._fail(tracked, info)
        tracked.changed.set()

    def pipeline_failed(self, stage: str, message: str) -> None:
        """A process died: every request fails with the stage named, and so does every later one."""
        self._failure = f"stage {stage!r}: {message}"
        for tracked in list(self._tracked.values()):
            self._fail(tracked, ErrorInfo(stage, "ProcessDied", message))

    def close(self) -> None:
        """Abort whatever still runs."""
        self._failure = self._failure or "the pipeline was stopped"
        for request_id in list(self._tracked):
            self.abort(request_id)

    def _fail(self, tracked: _Tracked, info: ErrorInfo) -> None:
        if info.traceback:
            logger.info("request %s failed in stage %s\n%s", tracked.request_id, info.stage, info.traceback)
        error = RequestFailedError(tracked.request_id, info.stage, info.error_type, info.message)
        self._finish(tracked, RequestState.FAILED, error)

    def _finish(self, tracked: _Tracked, state: RequestState, error: OmniError | None) -> None:
        tracked.state, tracked.error = state, error
        if error is not None:
            tracked.events.clear()
            self._broadcast(AbortMessage(tracked.request_id))
        del self._tracked[tracked.request_id]
        self._ended[tracked.request_id] = state
        if len(self._ended) > REMEMBERED_IDS:
            self._ended.popitem(last=False)
        tracked.changed.set()
