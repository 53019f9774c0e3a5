"""The asyncio shell of :class:`~omni_core.coordinator.request_machine.RequestMachine`.

It talks to stages by messages only: it encodes requests, decodes results, keeps one timer, wakes clients, and records spans.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from functools import partial
from typing import Any

from attrs import evolve

from omni_core.control.lanes import Lanes, in_task, in_thread
from omni_core.coordinator import inputs
from omni_core.coordinator.actions import Action, AskWaiting, Ended, Feed, Flow, Start, Wake, Withdraw
from omni_core.coordinator.deadlines import check_timeout
from omni_core.coordinator.digest import digest_of
from omni_core.coordinator.entry import Entry, Send
from omni_core.coordinator.input_stream import InputStream
from omni_core.coordinator.open_request import AsyncOpenRequest
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.tracked_request import RequestState, StreamEvent, TrackedRequest
from omni_core.errors import InvalidRequestError, OmniError, contained, is_interrupt, message_of, own_copy, traceback_of
from omni_core.observe.recording import Recorder
from omni_core.observe.telemetry import Telemetry
from omni_core.protocol import lazy_torch
from omni_core.protocol.codec import Body, decode
from omni_core.protocol.error_info import describe
from omni_core.protocol.messages import (
    AbortMessage,
    CompleteMessage,
    ErrorInfo,
    FlowMessage,
    InputTaken,
    OmniRequest,
    StageSpan,
    StreamMessage,
    WaitingReport,
    WaitingRequest,
)
from omni_core.protocol.structure import rough_nbytes
from omni_core.relay.transfer import LARGE_HEADER_BYTES

logger = logging.getLogger(__name__)

_TELEMETRY = "OpenTelemetry, asked for a span,"


class Coordinator:
    """Serves the requests of one pipeline. All methods are called from one event loop.

    Args:
        entry_stage: its name.
        machine: makes the :class:`RequestMachine`, or a subclass of it, out of ``left`` and ``digest``.
        submit_to_stage: queues a message that starts a request, or brings a part of its input, for the process that hosts its entry stage.
        broadcast: sends a message to every process, and returns how many there are.
        left: called when a running attempt has ended.
        admit: checks a request before it is admitted, and returns it with its parameters in their places.
        check_result: returns the error with which a request fails that has this result, or partial result, of a stage.
        telemetry: makes an OpenTelemetry span of every request and stage.
        on_busy: called when the first request arrives at an idle pipeline.
        input_streams: kinds of chunks of requests whose input comes as a stream; empty: the entry stage takes none.
    """

    def __init__(
        self,
        *,
        entry_stage: str,
        machine: Callable[..., RequestMachine],
        submit_to_stage: Send,
        broadcast: Callable[[Any], int],
        left: Callable[[str], None] = lambda attempt_id: None,
        admit: Callable[[OmniRequest], OmniRequest] = lambda request: request,
        check_result: Callable[[str, Any], OmniError | None] = lambda stage, data: None,
        on_busy: Callable[[], None] = lambda: None,
        telemetry: Telemetry | None = None,
        input_streams: Collection[str] = (),
    ) -> None:
        self._machine = machine(left=self._has_left, digest=digest_of)
        self._left = left
        self._draining: list[asyncio.Future[None]] = []
        self._check, self._check_result = admit, check_result
        self._broadcast = broadcast
        self._on_busy = on_busy
        self.telemetry = telemetry
        self._input_streams = input_streams
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._reads: Lanes[str] = Lanes(self._read_failed, threading.RLock())
        self.entry = Entry(entry_stage, self._machine, submit_to_stage, self._perform, lambda: self.recorder)
        self._performers: dict[type, Callable[[Any], None]] = {
            Start: self.entry.start,
            Feed: self.entry.feed,
            Ended: self._end,
            Wake: self._wake,
            Withdraw: self._withdraw,
            Flow: self._flow,
            AskWaiting: self._ask,
        }
        self.recorder: Recorder | None = None
        """Records requests while a profile is on."""

    async def submit(self, request: OmniRequest, request_id: str | None = None) -> dict[str, Any]:
        """Run a request and return the results of its terminal stages by name. Cancelling the call aborts the request.

        Raises:
            OverloadedError: the pipeline is full, or would miss its objectives. InvalidRequestError: the request itself is at fault.
            RequestTimeoutError: it was not finished in time. RequestFailedError: it failed in a stage.
            RequestAbortedError: it was aborted.
        """
        tracked = self._admit(request, request_id, wants_partial=False)
        try:
            while not tracked.is_over:
                await self._news(tracked)
        finally:
            self._leave(tracked)
        if tracked.error is not None:
            raise tracked.error
        return {event.stage: event.data for event in tracked.events}

    def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncGenerator[StreamEvent]:
        """Run a request and yield its partial results (if ``request.stream``) and final ones as they come.

        Leaving the iteration early aborts the request. Raises as :meth:`submit`.
        """
        return self._events(lambda: self._admit(request, request_id, wants_partial=True))

    def open(
        self, request: OmniRequest, request_id: str | None = None, chunk_timeout: float | None = None
    ) -> AsyncOpenRequest:
        """Run a request whose input is sent while it runs. It begins at once, without what follows.

        Args:
            chunk_timeout: seconds in which the entry stage must take each chunk, or ``None``.

        Raises:
            InvalidRequestError: the entry stage takes no streams, or ``chunk_timeout`` is no number of seconds.
            OmniError: it is refused, as by :meth:`submit`.
        """
        if not self._input_streams:
            raise InvalidRequestError(
                "open_request: this pipeline takes no input as a stream (its interface has no `input_streams`); "
                "send the whole request at once"
            )
        check_timeout("chunk_timeout", chunk_timeout)
        stream = InputStream(chunk_timeout)
        tracked = self._admit(evolve(request, stream=True), request_id, wants_partial=True, stream=stream)

        def send(body: Body, has_tensors: bool) -> None:
            self._perform(self._machine.send(tracked, body, has_tensors, self._loop.time()))

        def finish() -> None:
            self._perform(inputs.finish(tracked))

        events = self._events(lambda: tracked)
        return AsyncOpenRequest(tracked, events, self._input_streams, send, finish, self.abort)

    async def _events(self, admit: Callable[[], TrackedRequest]) -> AsyncGenerator[StreamEvent]:
        tracked = admit()
        del admit  # the request's inputs are large, and its events may take long
        try:
            while True:
                while tracked.events:
                    event = tracked.events.popleft()
                    self._perform(self._machine.read(tracked, event, self._loop.time()))
                    yield event
                if tracked.error is not None:
                    raise tracked.error
                if tracked.is_over:
                    return
                await self._news(tracked)
        finally:
            self._leave(tracked)

    def abort(self, request_id: str) -> None:
        """Drop the request everywhere. Idempotent; an id that is not running is ignored."""
        self._perform(self._machine.abort(request_id, self._loop.time()))

    def state(self, request_id: str) -> RequestState | None:
        """The state of a request that runs or has recently ended; ``None`` for an unknown id, or one of long ago."""
        return self._machine.state(request_id)

    @property
    def in_flight(self) -> int:
        return self._machine.in_flight

    def statistics(self) -> dict[str, float]:
        """Counts of requests by their end, of admissions, refusals and retries; ``running`` are held now."""
        counts = {name: float(number) for name, number in self._machine.counts.items()}
        return {**counts, "running": float(self._machine.in_flight)}

    def _admit(
        self,
        request: OmniRequest,
        request_id: str | None,
        *,
        wants_partial: bool,
        stream: InputStream | None = None,
    ) -> TrackedRequest:
        refusal: OmniError | None = None
        try:
            request = self._check(request)
        except BaseException as error:
            if is_interrupt(error):
                raise
            refusal = own_copy(error)
            if refusal is None:
                refusal = InvalidRequestError(f"the request cannot be checked: {message_of(error, with_type=True)}")
                refusal.add_note(traceback_of(error))
        if refusal is not None:  # not raised above: it would have the other one as its context
            self._machine.counts["refused"] += 1
            raise refusal
        now = self._loop.time()
        tracked, actions = self._machine.submit(
            request, request_id, wants_partial=wants_partial, now=now, stream=stream
        )
        try:
            if self.telemetry is not None:
                begin = partial(self.telemetry.begin, tracked.request_id, tracked.request)
                tracked.request = contained(begin, tracked.request, _TELEMETRY)
            if self._machine.in_flight == 1:
                self._on_busy()
            self._perform(actions)
        except BaseException:
            self._leave(tracked)
            raise
        return tracked

    async def _news(self, tracked: TrackedRequest) -> None:
        tracked.waiter = self._loop.create_future()
        await tracked.waiter

    def _leave(self, tracked: TrackedRequest) -> None:
        if not tracked.is_over:
            self.abort(tracked.request_id)

    def handle(self, message: CompleteMessage | StreamMessage) -> None:
        """Take a stage's message about a request. One for a request that has ended is dropped."""
        is_final = isinstance(message, CompleteMessage)
        if isinstance(message, CompleteMessage) and message.error is not None:
            if not message.left_out or not all(self.completed(message.request_id, each) for each in message.left_out):
                self.fail(message.request_id, message.error)
        elif not self._machine.wants(message.request_id, message.from_stage, final=is_final):
            return
        elif message.has_tensors or len(self._reads) or len(message.body or b"") > LARGE_HEADER_BYTES:
            self._reads.run(message.request_id, partial(self._read, message))
        else:
            self._take(message, _value_of(message))

    def fail(self, attempt_id: str, info: ErrorInfo) -> None:
        """Fail a request for a reason that a stage or the runner knows."""
        if info.traceback and self._machine.attempt(attempt_id) is not None:
            where = {"request_id": attempt_id, "stage": info.stage or ""}
            logger.info("request %s failed in stage %s\n%s", attempt_id, info.stage, info.traceback, extra=where)
        self._perform(self._machine.failure(attempt_id, info, self._loop.time()))

    def process_lost(self, lost: Mapping[str, str], reason: str, excuse: Callable[[], None] = lambda: None) -> None:
        """Tell of one dead process: all attempts that it held, each with a stage that held it.

        They run again as far as ``retries`` allow, and fail otherwise. One call for one death: which of them was the cause is
        judged by who was there. ``excuse``: called when one of them is found to be the cause, now or at a later death.
        """
        self._perform(self._machine.process_lost(lost, reason, self._loop.time(), excuse))

    def answered(self, report: WaitingReport) -> None:
        """Take a process's answer about an expired request."""
        self._perform(self._machine.answered(report.attempt, report.stages, self._loop.time()))

    def input_taken(self, message: InputTaken) -> None:
        """Take in that the entry stage has taken chunks of an input, or needs no more of it."""
        tracked = self._machine.attempt(message.attempt)
        if tracked is not None:
            self._perform(inputs.taken(tracked, message.chunks, is_over=message.is_over))

    def stage_span(self, span: StageSpan) -> None:
        """Add the time of a traced request in a stage to its trace."""
        if self.telemetry is not None:
            tracked = self._machine.attempt(span.request_id)
            request_id = tracked.request_id if tracked is not None else span.request_id
            contained(partial(self.telemetry.stage, request_id, span), None, _TELEMETRY)

    def attempts(self) -> dict[str, OmniRequest]:
        """The running requests by the names that stages know them by."""
        return self._machine.attempts()

    def completed(self, attempt_id: str, stage: str) -> bool:
        """Return whether the result of a terminal stage has come, or none is expected."""
        return self._machine.is_completed(attempt_id, stage)

    async def drained(self, holds: Callable[[OmniRequest], bool]) -> None:
        """Wait until no running request is one that ``holds`` accepts."""
        while any(map(holds, self._machine.attempts().values())):
            ended = self._loop.create_future()
            self._draining.append(ended)
            await ended

    def _has_left(self, attempt_id: str) -> None:
        self._left(attempt_id)
        draining, self._draining = self._draining, []
        for ended in draining:
            if not ended.done():
                ended.set_result(None)

    def close(self) -> None:
        """Abort all requests and refuse new ones."""
        self._perform(self._machine.close(self._loop.time()))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            self._performers[type(action)](action)
        due = self._machine.next_timer()
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_at(due, self._ring)

    def _withdraw(self, action: Withdraw) -> None:
        self._reads.cancel(action.attempt_id)
        self._broadcast(AbortMessage(action.attempt_id))

    def _flow(self, action: Flow) -> None:
        self._broadcast(FlowMessage(action.attempt_id, "", action.paused))

    def _end(self, action: Ended) -> None:
        tracked = action.request
        if self.telemetry is not None:
            end = partial(self.telemetry.end, tracked.request_id, tracked.state.value, tracked.error)
            contained(end, None, _TELEMETRY)
        if self.recorder is not None:
            self.recorder.end(tracked.attempt_id, "request", state=tracked.state.value)
        self._wake(action)

    @staticmethod
    def _wake(action: Wake | Ended) -> None:
        of_input = action.request.input
        for waiter in (action.request.waiter, None if of_input is None else of_input.waiter):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _ask(self, action: AskWaiting) -> None:
        processes = self._broadcast(WaitingRequest(action.attempt_id))
        self._perform(self._machine.asked(action.attempt_id, processes, self._loop.time()))

    def _ring(self) -> None:
        self._timer = None
        # A timer of asyncio may come a little early: then it is set again.
        self._perform(self._machine.clock(self._loop.time()))

    async def _read(self, message: CompleteMessage | StreamMessage) -> None:
        if message.has_tensors and not lazy_torch.is_here():
            await in_task()
            await lazy_torch.bring()
        is_long = len(message.body or b"") > LARGE_HEADER_BYTES
        self._take(message, await in_thread(_value_of, message) if is_long else _value_of(message))

    def _read_failed(self, attempt_id: str, error: BaseException) -> None:
        info = describe(error, None)
        self.fail(attempt_id, evolve(info, message=f"its result cannot be read here: {info.message}"))

    def _take(self, message: CompleteMessage | StreamMessage, data: Any) -> None:
        attempt, stage = message.request_id, message.from_stage
        begin = time.monotonic_ns()
        problem = data if issubclass(type(data), BaseException) else self._check_result(stage, data)
        if problem is not None:
            self.fail(attempt, describe(problem, stage))
            return
        if self.recorder is not None:
            chunk_id = None if isinstance(message, CompleteMessage) else message.chunk_id
            flow = (stage, "client", chunk_id)
            self.recorder.slice(f"receive from {stage}", begin, attempt, flow, starts=False)
        final = isinstance(message, CompleteMessage)
        nbytes = 0 if final else rough_nbytes(data)
        self._perform(self._machine.result(attempt, stage, data, final=final, now=self._loop.time(), nbytes=nbytes))


def _value_of(message: CompleteMessage | StreamMessage) -> Any:
    """Return what a stage has sent, or the error of reading it. In any thread."""
    try:
        return decode(message.body or b"\xc0")
    except BaseException as error:
        if is_interrupt(error):
            raise
        return error
