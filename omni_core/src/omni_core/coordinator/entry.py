"""The way of requests and of the chunks of their inputs to the entry stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from omni_core.control.lanes import Tasks
from omni_core.coordinator import inputs
from omni_core.coordinator.actions import Action, Feed, Start
from omni_core.coordinator.digest import digest_of
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.tracked_request import TrackedRequest
from omni_core.errors import OmniError, is_interrupt
from omni_core.observe.recording import Recorder
from omni_core.protocol.codec import Body, encode_whole, is_large
from omni_core.protocol.error_info import describe
from omni_core.protocol.messages import DataReadyMessage, OmniRequest, StagePayload, SubmitMessage

Send = Callable[[SubmitMessage | DataReadyMessage, OmniRequest], None]
"""Queues a message about a request for the process that hosts its entry stage."""


class Entry:
    """Sends requests and their inputs to the entry stage.

    Args:
        stage: its name.
        machine: is told of failures.
        send: queues a message for it.
        perform: carries out actions of the machine.
        recorder: returns what records sends, while a profile is on.

    Attributes:
        encoding: tasks that encode large requests.
    """

    def __init__(
        self,
        stage: str,
        machine: RequestMachine,
        send: Send,
        perform: Callable[[list[Action]], None],
        recorder: Callable[[], Recorder | None],
    ) -> None:
        self._stage = stage
        self._machine = machine
        self._send = send
        self._perform = perform
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self.encoding = Tasks()

    def start(self, action: Start) -> None:
        """Send a request that begins."""
        tracked = action.request
        attempt, request = tracked.attempt_id, tracked.request
        if self._machine.attempt(attempt) is not tracked:
            return  # it has ended since
        recorder = self._recorder()
        if recorder is not None:
            recorder.begin(attempt, "request")
        begin = time.monotonic_ns()
        payload = StagePayload(attempt, request, None)
        try:
            if is_large(payload):
                self.encoding.start(self._start_later(tracked, payload))
                return
            self._submit(tracked, request, encode_whole(payload, checked=True))
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._perform(self._machine.start_failed(tracked, error, self._loop.time()))
            return
        self._has_started(tracked, attempt, begin)

    async def _start_later(self, tracked: TrackedRequest, payload: StagePayload) -> None:
        """Encode a large request beside the event loop, and submit it if it has not ended since."""
        attempt, request, begin = tracked.attempt_id, tracked.request, time.monotonic_ns()
        may_run_again = self._machine.may_run_again()
        try:
            encoded = await asyncio.to_thread(encode_whole, payload)
            needs_digest = not may_run_again and tracked.input is None
            digest = await asyncio.to_thread(digest_of, tracked.original or request) if needs_digest else None
            if self._machine.attempt(attempt) is not tracked:
                return
            self._submit(tracked, request, encoded)
            if not may_run_again:
                tracked.request, tracked.original, tracked.digest = request.without_inputs(), None, digest
        except BaseException as error:
            if issubclass(type(error), asyncio.CancelledError) or is_interrupt(error):
                raise
            if self._machine.attempt(attempt) is tracked:
                self._perform(self._machine.start_failed(tracked, error, self._loop.time()))
            return
        self._has_started(tracked, attempt, begin)

    def _submit(self, tracked: TrackedRequest, request: OmniRequest, encoded: tuple[Body, bool]) -> None:
        is_open = tracked.input is not None
        self._send(SubmitMessage(tracked.attempt_id, self._stage, *encoded, is_open), request)

    def _has_started(self, tracked: TrackedRequest, attempt: str, begin: int) -> None:
        recorder = self._recorder()
        if recorder is not None:
            flow = ("client", self._stage, None)
            recorder.slice(f"submit to {self._stage}", begin, attempt, flow, starts=True)
        self._perform(inputs.ready(tracked))

    def feed(self, action: Feed) -> None:
        """Send a chunk of an input, or its end."""
        message = DataReadyMessage(
            *(action.attempt_id, self._stage, "", action.body),
            is_stream=True,
            chunk_id=action.number,
            is_done=action.body is None,
            has_tensors=action.has_tensors,
        )
        try:
            self._send(message, action.request)
        except OmniError as error:  # nothing reads what is sent there
            info = describe(error, self._stage)
            self._perform(self._machine.failure(action.attempt_id, info, self._loop.time()))
