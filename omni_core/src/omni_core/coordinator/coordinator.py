"""The coordinator: admits requests, tracks their states, merges terminal stages, resolves clients (seed 002).

It talks to stages by messages only and knows none of their insides.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from enum import Enum
from functools import partial
from typing import Any

from attrs import define, evolve, field, frozen

from omni_core.control.lanes import Lanes, Later
from omni_core.errors import (
    ConfigError,
    InvalidRequestError,
    OmniError,
    OverloadedError,
    RequestAbortedError,
    RequestFailedError,
    StageFailedError,
)
from omni_core.observe.profiler import Recorder, flow_of
from omni_core.observe.telemetry import Telemetry
from omni_core.protocol import lazy_torch
from omni_core.protocol.codec import decode, encode_whole
from omni_core.protocol.messages import (
    AbortMessage,
    CompleteMessage,
    ErrorInfo,
    OmniRequest,
    StagePayload,
    StageSpan,
    StreamMessage,
    SubmitMessage,
)
from omni_core.references import load

logger = logging.getLogger(__name__)

MAX_UNREAD_EVENTS = 10_000
"""Events that may wait for one streaming client before its request fails: a bound on what a slow reader can hold."""

REMEMBERED_IDS = 20_000

_SHORTEST_RETRY_AFTER, _LONGEST_RETRY_AFTER = 0.1, 60.0

_INQUEST_SECONDS = 0.7
"""What an inquest into the death of a process may take, and a little more."""


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
    """One request that has not ended. ``attempt_id`` is what stages call it: a new name for every attempt."""

    request_id: str
    attempt_id: str
    request: OmniRequest
    terminals: set[str]
    since: float
    wants_partial: bool
    state: RequestState = RequestState.PENDING
    events: deque[StreamEvent] = field(factory=deque)
    news: asyncio.Future[None] | None = None
    deadline: asyncio.TimerHandle | None = None
    error: OmniError | None = None
    attempts: int = 1
    was_read: bool = False

    @property
    def over(self) -> bool:
        return self.state in (RequestState.COMPLETED, RequestState.FAILED, RequestState.ABORTED)

    def tell(self) -> None:
        """Wake the client."""
        if self.news is not None and not self.news.done():
            self.news.set_result(None)


class Coordinator:
    """Routes requests of one pipeline. All methods are called from one event loop.

    Args:
        entry_stage, terminal_stages: names.
        terminal_stages_fn: reference of ``(request) -> subset of terminal_stages | None``.
        submit_to_stage: queues the message that starts a request for the process that hosts its entry stage.
        broadcast: sends a message to every process.
        place: chooses the replicas for a request: stage name to replica number, for replicated stages.
        max_in_flight: requests held at once; more are refused with :class:`OverloadedError`.
        admit: checks a request before it is admitted and returns it with its parameters in their places.
        retries: how often a request is run again that a dying process held.
        telemetry: makes an OpenTelemetry span of every request and stage.
        on_busy: called when the first request arrives at an idle pipeline.
    """

    def __init__(
        self,
        *,
        entry_stage: str,
        terminal_stages: list[str],
        terminal_stages_fn: str | None,
        submit_to_stage: Callable[[SubmitMessage, OmniRequest], None],
        broadcast: Callable[[Any], None],
        place: Callable[[OmniRequest], dict[str, int]] = lambda request: {},
        max_in_flight: int = 256,
        admit: Callable[[OmniRequest], OmniRequest] = lambda request: request,
        retries: int = 0,
        on_busy: Callable[[], None] = lambda: None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._entry_stage = entry_stage
        self._terminal_stages = frozenset(terminal_stages)
        self._terminal_stages_fn = load(terminal_stages_fn) if terminal_stages_fn else None
        self._submit_to_stage = submit_to_stage
        self._broadcast = broadcast
        self._place = place
        self._max_in_flight = max_in_flight
        self._check = admit
        self._retries = retries
        self._on_busy = on_busy
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._tracked: dict[str, _Tracked] = {}
        self._attempts: dict[str, _Tracked] = {}
        self._reads: Lanes[str] = Lanes(self._read_failed, threading.RLock())
        self._ended: OrderedDict[str, RequestState] = OrderedDict()
        self._closed = False
        self._typical_seconds = _SHORTEST_RETRY_AFTER
        self.recorder: Recorder | None = None
        """Where requests are recorded while a profile is on."""
        self.counts = dict.fromkeys((*RequestState, "retried", "refused"), 0)

    # --- for clients -------------------------------------------------------------------------------------------------
    async def submit(self, request: OmniRequest, request_id: str | None = None) -> dict[str, Any]:
        """Run a request; the results of its terminal stages by name. Cancelling the call aborts the request.

        Raises:
            OverloadedError: the pipeline is full. InvalidRequestError: the request is refused.
            RequestFailedError: it failed in a stage. RequestAbortedError: somebody aborted it.
        """
        tracked = self._admit(request, request_id, wants_partial=False)
        try:
            while not tracked.over:
                await self._news(tracked)
        finally:
            if not tracked.over:
                self.abort(tracked.request_id)
        if tracked.error is not None:
            raise tracked.error
        return {event.stage: event.data for event in tracked.events}

    async def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncIterator[StreamEvent]:
        """Run a request; its partial results (if ``request.stream``) and final ones as they come.

        Leaving the iteration early aborts the request. Raises as :meth:`submit`.
        """
        tracked = self._admit(request, request_id, wants_partial=True)
        try:
            while True:
                while tracked.events:
                    tracked.was_read = True
                    yield tracked.events.popleft()
                if tracked.error is not None:
                    raise tracked.error
                if tracked.over:
                    return
                await self._news(tracked)
        finally:
            if not tracked.over:
                self.abort(tracked.request_id)

    async def _news(self, tracked: _Tracked) -> None:
        tracked.news = self._loop.create_future()
        await tracked.news

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

    def statistics(self) -> dict[str, float]:
        """Requests by what became of them, and how many are held now."""
        counters = {getattr(name, "value", name): float(count) for name, count in self.counts.items()}
        del counters[RequestState.PENDING.value]
        return {**counters, "running": float(len(self._tracked)), "admitted": float(self.counts[RequestState.PENDING])}

    def _admit(self, request: OmniRequest, request_id: str | None, *, wants_partial: bool) -> _Tracked:
        if self._closed:
            raise RequestFailedError(request_id or "-", None, "PipelineStopped", "the pipeline was stopped")
        name = request_id or uuid.uuid4().hex
        if name in self._tracked or name in self._ended:
            raise InvalidRequestError(f"request id {name!r} was used before; give each request an id of its own")
        if len(self._tracked) >= self._max_in_flight:
            self.counts["refused"] += 1
            seconds = min(max(self._typical_seconds, _SHORTEST_RETRY_AFTER), _LONGEST_RETRY_AFTER)
            raise OverloadedError(
                f"{len(self._tracked)} requests are in flight, the limit; retry after {seconds:.1f} s", seconds
            )
        request = self._check(request)
        terminals = self._terminals_of(request)
        if self._telemetry is not None:
            request = self._telemetry.begin(name, request)
        tracked = _Tracked(name, name, request, terminals, self._loop.time(), wants_partial)
        self._start(tracked)
        if not self._tracked:
            self._on_busy()
        self._tracked[name] = tracked
        tracked.state = RequestState.RUNNING
        self.counts[RequestState.PENDING] += 1
        if request.timeout is not None:
            tracked.deadline = self._loop.call_later(request.timeout, self._expire, tracked)
        if not self._retries:
            tracked.request = request.without_inputs()  # nobody needs the heavy inputs again
        return tracked

    def _start(self, tracked: _Tracked) -> None:
        try:
            placement = self._place(tracked.request)
        except StageFailedError as error:
            raise _as_failure(tracked, error) from error
        request = evolve(tracked.request, placement=placement) if placement else tracked.request
        begin = time.monotonic_ns()
        if self.recorder is not None:
            self.recorder.begin(tracked.attempt_id, "request")
        body, has_tensors = encode_whole(StagePayload(tracked.attempt_id, request, None))
        try:
            self._submit_to_stage(SubmitMessage(tracked.attempt_id, self._entry_stage, body, has_tensors), request)
        except StageFailedError as error:
            raise _as_failure(tracked, error) from error
        if self.recorder is not None:
            name, entry = tracked.attempt_id, self._entry_stage
            self.recorder.slice(f"submit to {entry}", begin, name, flow_of(name, "client", entry, None), starts=True)
        tracked.request = request
        self._attempts[tracked.attempt_id] = tracked

    def _terminals_of(self, request: OmniRequest) -> set[str]:
        if self._terminal_stages_fn is None:
            return set(self._terminal_stages)
        try:
            names = self._terminal_stages_fn(request)
        except BaseException as error:
            raise InvalidRequestError(f"terminal_stages_fn failed: {type(error).__name__}: {error}") from error
        if names is None:
            return set(self._terminal_stages)
        try:
            chosen = {names} if isinstance(names, str) else set(names)
        except TypeError:
            chosen = set()
        if not chosen or not chosen <= self._terminal_stages:
            raise ConfigError(
                f"terminal_stages_fn returned {names!r}; it must be a subset of {sorted(self._terminal_stages)}"
            )
        return chosen

    # --- for the runner ----------------------------------------------------------------------------------------------
    def handle(self, message: CompleteMessage | StreamMessage) -> None:
        """A stage's message about a request. One for a request that has ended is dropped."""
        tracked = self._attempts.get(message.request_id)
        if tracked is None:
            return
        if isinstance(message, CompleteMessage) and message.error is not None:
            if message.error.peer_died:
                # The inquest into that death is under way and knows more; this only makes sure of an end.
                reason = message.error.message
                self._loop.call_later(_INQUEST_SECONDS, self.lost, message.request_id, message.from_stage, reason)
            else:
                self._fail(tracked, message.error)
        elif message.has_tensors or len(self._reads):
            try:
                self._reads.run(message.request_id, partial(self._read, message))
            except Exception as error:
                self._read_failed(message.request_id, error)
        else:
            self._take(tracked, message)

    def _read(self, message: CompleteMessage | StreamMessage) -> Later | None:
        if message.has_tensors and not lazy_torch.is_here():
            return partial(self._read_later, message)
        tracked = self._attempts.get(message.request_id)
        if tracked is not None:
            self._take(tracked, message)
        return None

    async def _read_later(self, message: CompleteMessage | StreamMessage) -> None:
        await lazy_torch.bring()
        self._read(message)

    def _read_failed(self, attempt_id: str, error: BaseException) -> None:
        self.fail(attempt_id, ErrorInfo(None, type(error).__name__, f"its result cannot be read here: {error}"))

    def _take(self, tracked: _Tracked, message: CompleteMessage | StreamMessage) -> None:
        if message.from_stage not in tracked.terminals:
            return  # a terminal stage that this request did not ask for
        final = isinstance(message, CompleteMessage)
        if not final and not tracked.wants_partial:
            return
        begin = time.monotonic_ns()
        try:
            data = decode(message.body or b"\xc0")
        except OmniError as error:
            self._fail(tracked, ErrorInfo(message.from_stage, type(error).__name__, str(error)))
            return
        if self.recorder is not None:
            source = message.from_stage
            chunk_id = None if isinstance(message, CompleteMessage) else message.chunk_id
            flow = flow_of(message.request_id, source, "client", chunk_id)
            self.recorder.slice(f"receive from {source}", begin, message.request_id, flow, starts=False)
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
        tracked.tell()

    def stage_span(self, span: StageSpan) -> None:
        """How long a traced request was in a stage."""
        if self._telemetry is not None:
            tracked = self._attempts.get(span.request_id)
            self._telemetry.stage(tracked.request_id if tracked is not None else span.request_id, span)

    def attempts(self) -> dict[str, OmniRequest]:
        """What runs now, as the stages call it."""
        return {name: tracked.request for name, tracked in self._attempts.items()}

    def completed(self, attempt_id: str, stage: str) -> bool:
        """Whether the result of a terminal stage has come, or none is expected."""
        tracked = self._attempts.get(attempt_id)
        return tracked is None or stage not in tracked.terminals

    def lost(self, attempt_id: str, stage: str, reason: str) -> None:
        """A process died that held this request in ``stage``: run it again if the pipeline allows, else fail it."""
        tracked = self._attempts.get(attempt_id)
        if tracked is None:
            return
        if tracked.attempts <= self._retries and not tracked.was_read:
            self._retry(tracked)
        else:
            self._fail(tracked, ErrorInfo(stage, "ProcessDied", reason))

    def _retry(self, tracked: _Tracked) -> None:
        del self._attempts[tracked.attempt_id]
        self._broadcast(AbortMessage(tracked.attempt_id))
        tracked.attempts += 1
        tracked.attempt_id = f"{tracked.request_id}~{uuid.uuid4().hex}"  # no client can have chosen that for its own
        tracked.events.clear()
        self.counts["retried"] += 1
        try:
            tracked.terminals = self._terminals_of(tracked.request)
            self._start(tracked)
        except RequestFailedError as error:
            self._finish(tracked, RequestState.FAILED, error)
        except Exception as error:
            self._finish(tracked, RequestState.FAILED, _as_failure(tracked, error))

    def fail(self, attempt_id: str, info: ErrorInfo) -> None:
        """The request has failed for a reason that the runner knows."""
        tracked = self._attempts.get(attempt_id)
        if tracked is not None:
            self._fail(tracked, info)

    def close(self) -> None:
        """Abort whatever still runs."""
        self._closed = True
        for request_id in list(self._tracked):
            self.abort(request_id)

    def _expire(self, tracked: _Tracked) -> None:
        message = f"not finished within its timeout of {tracked.request.timeout} s"
        self._fail(tracked, ErrorInfo(None, "TimeoutError", message))

    def _fail(self, tracked: _Tracked, info: ErrorInfo) -> None:
        if info.traceback:
            logger.info("request %s failed in stage %s\n%s", tracked.request_id, info.stage, info.traceback)
        error = RequestFailedError(tracked.request_id, info.stage, info.error_type, info.message)
        self._finish(tracked, RequestState.FAILED, error)

    def _finish(self, tracked: _Tracked, state: RequestState, error: OmniError | None) -> None:
        if tracked.over:
            return
        tracked.state, tracked.error = state, error
        if self._telemetry is not None:
            self._telemetry.end(tracked.request_id, state.value, error)
        if self.recorder is not None:
            self.recorder.end(tracked.attempt_id, "request", state=state.value)
        self.counts[state] += 1
        if tracked.deadline is not None:
            tracked.deadline.cancel()
        del self._tracked[tracked.request_id]
        self._attempts.pop(tracked.attempt_id, None)
        if len(self._reads):
            self._reads.cancel(tracked.attempt_id)
        self._ended[tracked.request_id] = state
        if len(self._ended) > REMEMBERED_IDS:
            self._ended.popitem(last=False)
        if error is not None:
            tracked.events.clear()
            self._broadcast(AbortMessage(tracked.attempt_id))
        else:
            self._typical_seconds += 0.1 * (self._loop.time() - tracked.since - self._typical_seconds)
        tracked.tell()


def _as_failure(tracked: _Tracked, error: Exception) -> RequestFailedError:
    stage = error.stage if isinstance(error, StageFailedError) else None
    return RequestFailedError(tracked.request_id, stage, type(error).__name__, str(error))
