"""A stage: one scheduler in a thread of its own, and the messages of its requests into it. Its outputs are those of ``outputs.py``.

The stage never asks which scheduler it has. Whatever one request makes a projection, a route, a merge or the codec raise
fails that request, with this stage's name, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from attrs import evolve

from omni_core.errors import RelayCapacityError, RequestTooLargeError, contained, message_of, name_of
from omni_core.observe.metrics import StageMetrics
from omni_core.observe.recording import Recorder, StageRecorder
from omni_core.observe.telemetry import TRACEPARENT
from omni_core.protocol.error_info import describe
from omni_core.protocol.messages import ErrorInfo, OmniRequest, StagePayload
from omni_core.protocol.specs import StageSpec
from omni_core.protocol.structure import rough_nbytes
from omni_core.scheduling.base import IncomingMessage, Scheduler
from omni_core.stage.active_requests import DONE, PAYLOAD, ActiveRequest, Arrivals, Requests, Seal
from omni_core.stage.computes import Computes
from omni_core.stage.fan_in import FanIn
from omni_core.stage.groups import Groups
from omni_core.stage.inflow import Inflow
from omni_core.stage.outbound import Outbound
from omni_core.stage.outputs import Outputs
from omni_core.stage.parts import Calls, Names, part_request
from omni_core.stage.routing import function
from omni_core.stage.thread import StageThread

logger = logging.getLogger(__name__)

_TOO_LARGE = (
    "the request is too large for this pipeline: what is made of it is more than may travel between two stages; send less at once, "
    "such as fewer, smaller or shorter media"
)


class Stage(StageThread):
    """One stage of a pipeline. Its methods run on the event loop of its process, or under the lock of ``outbound``.

    Args:
        on_scheduler_death: called on the event loop when the scheduler's loop has ended by itself.
        abort: tells the scheduler to drop a request; by default, the scheduler's own ``abort``.
    """

    def __init__(
        self,
        spec: StageSpec,
        scheduler: Scheduler,
        outbound: Outbound,
        on_scheduler_death: Callable[[], None],
        abort: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(spec, scheduler)
        self._on_scheduler_death = on_scheduler_death
        self._abort_one = abort or scheduler.abort
        self._outbound = outbound
        self._lock = outbound.lock
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._metrics = StageMetrics()
        self._requests = Requests()
        self.groups = Groups(spec.name, function(spec.expand_fn))
        made = (
            self._requests,
            outbound,
            self._metrics,
            self.groups,
            self._outputs_are_full,
            self._complete,
            self._fail,
        )
        self._outputs = Outputs(spec, scheduler, *made)
        self._inflow = Inflow(spec, self._requests, outbound, self._outputs.is_full)
        self._full: set[str] = set()
        if spec.stream_from:
            scheduler.inbox.on_take = self._inflow.taken
            if hasattr(scheduler, "hold_input"):
                scheduler.hold_input = self._inflow.hold
        self._phases: StageRecorder | None = None
        self._computes = Computes(scheduler, self._requests)
        self._names = Names(spec.part)
        self._calls = Calls({} if spec.enters is None else spec.enters.tool_formats, outbound.services)
        own = self._names.own
        self._merge_fn = function(spec.merge_fn)
        choose = self._names.chooses(function(spec.wait_for_fn), spec.wait_for)
        self._wait_for_fn = None if choose is None else lambda request, name, each: choose(request, own(name), each)

    def start(self) -> None:
        """Begin to compute. Every stage of the process exists by now."""
        self._outputs.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self._outputs.stop()

    def ended(self, error: RuntimeError) -> None:
        self._loop.call_soon_threadsafe(self._scheduler_died, error)

    def _scheduler_died(self, error: RuntimeError) -> None:
        for request_id in self._requests:
            self._fail(request_id, error)
        self._on_scheduler_death()

    def profile(self, recorder: Recorder | None) -> None:
        if self._phases is not None:
            self._phases.detach()
        self._phases = None if recorder is None else recorder.attach(self.name, self.scheduler.inbox, self.scheduler)

    @property
    def completed(self) -> int:
        """The requests that this stage has completed."""
        return self._metrics.completed

    def statistics(self) -> dict[str, float]:
        """The scheduler's counters and how many requests are inside this stage."""
        return {
            **super().statistics(),
            **self._metrics.as_counters(),
            "queued": float(len(self.scheduler.inbox)),
            "in_flight": float(len(self._requests)),
            "sends_pending": float(len(self._outputs)),
        }

    def running_computes(self) -> dict[str, float]:
        """Return the requests of the running compute, with the ``time.monotonic()`` of its begin."""
        if callable(getattr(self.scheduler, "running_computes", None)):
            return {self.groups.request_of(name): since for name, since in super().running_computes().items()}
        return self._computes.running()

    def flush_caches(self) -> bool:
        """Let the scheduler forget what it keeps for later requests; ``False`` if it offers no such thing."""
        offered = getattr(self.scheduler, "flush_caches", None)
        if offered is not None:
            offered()
        return offered is not None

    def arrivals(self, request_id: str) -> Arrivals:
        """Return what of a request has come so far, by source; also of one that has lately ended here."""
        return self._requests.arrivals(request_id)

    def waiting(self, request_id: str) -> list[str]:
        """Return what a request waits for in this stage, such as ``"waits for 'tone'"``; empty if the stage does not have it."""
        with self._lock:
            active = self._requests.get(request_id)
            if active is None:
                return []
            ask = getattr(self.scheduler, "waiting", None)
            if ask is None:
                return active.waits_for(self.spec.stream_from)
            inputs = contained(lambda: str(ask(request_id)), "", f"`waiting` of the scheduler of stage {self.name!r}")
            return active.waits_for([], inputs)

    def receive_payload(self, payload: StagePayload, source: str | None, handed_to: Any = None) -> None:
        """Take a payload from the coordinator (``source`` is ``None``) or from another stage."""
        with self._lock:
            active = self._requests.enter(payload.request_id)
            if active is None:
                return
            try:
                self._see(active, payload.request)
                if source is not None:
                    active.note(source, PAYLOAD, handed_to)
                    if self.spec.wait_for:
                        merged = self._fan_in(active, source, payload)
                        if merged is None:
                            return
                        payload = merged
                if active.payload_from is not None:
                    if self._streams_in(source):  # its chunks were the input
                        return
                    first = active.payload_from or "the client"
                    what = "stage %r: a payload from %r is dropped: request %s has one from %r; name both in `wait_for`"
                    logger.warning(what, self.name, source, payload.request_id.partition("~")[0], first)
                    return
                self._give(active, payload, source)
            except BaseException as error:
                self._fail(active.request_id, error)

    def _see(self, active: ActiveRequest, request: OmniRequest | None) -> None:
        """Keep the request, of the first message that carries it, as this stage sees it."""
        if active.request is None and request is not None:
            view = self.spec.enters
            active.request = (request if view is None else part_request(request, view)).without_inputs()

    def _streams_in(self, source: str | None) -> bool:
        """Return whether a stage of another part streams what is the input of this one."""
        return self.spec.enters is not None and bool(source) and source in self.spec.stream_from

    def _waits_to_open(self, active: ActiveRequest) -> bool:
        """Return whether what a part streams comes before what the request is opened with, which this stage waits for."""
        return active.payload_from is None and bool(self.spec.wait_for)

    def _give(self, active: ActiveRequest, payload: StagePayload, source: str | None) -> None:
        """Give the scheduler a request: of another part, whose result is the input here, as a client would have sent it."""
        active.payload_from = source or ""
        view, is_stream = self.spec.enters, False
        if view is not None:
            is_stream = self._streams_in(source)
            assert active.request is not None
            inputs = payload.request.inputs if source is None else None if is_stream else payload.data
            payload = StagePayload(active.request_id, evolve(active.request, inputs=inputs), None)
        shown = None if source is None or view is not None else self._names.own(source)
        message = IncomingMessage(active.request_id, "new_request", payload, shown, None, active.request)
        for part in self.groups.expand(message) if self.groups.used else (message,):
            self.scheduler.inbox.put(part)
        if source is None or view is None or not view.reads_streams:
            return
        active.is_opened = (
            not is_stream and payload.request.is_streamed and any(map(self._streams_in, self.spec.stream_from))
        )
        if not active.is_opened and (not is_stream or active.arrived.get(source, (0, None))[0] & DONE):
            self._put_done(active, None)
        if active.early:
            self._inflow.anew(active)
        while active.early:
            active.early.pop(0)()

    def receive_chunk(self, request_id: str, source: str, value: tuple[Any, Any, OmniRequest | None]) -> None:
        """Take one stream chunk of another stage, or of the client (``""``): ``(data, metadata, request or None)``."""
        with self._lock:
            active = self._requests.enter(request_id)
            if active is None:
                return
            data, metadata, request = value
            self._see(active, request)
            if self._streams_in(source):
                if self._waits_to_open(active):
                    active.early.append(partial(self.receive_chunk, request_id, source, value))
                    self._inflow.add(request_id, source, rough_nbytes(data))
                    return
                if active.payload_from is None:
                    self._give(active, active.payload(None), source)
                if not active.takes_from(source):
                    return  # another part's result was the input
                try:
                    data = self._calls.without(active, source, data)
                except BaseException as error:
                    self._fail(request_id, error)
                if data is None or active.is_over:
                    return
            self._put_chunk(active, source, data, metadata)

    def _put_chunk(self, active: ActiveRequest, source: str, data: Any, metadata: dict[str, Any] | None) -> None:
        self._inflow.add(active.request_id, source, rough_nbytes(data))
        shown = None if self.spec.enters is not None else self._names.own(source) or None
        message = IncomingMessage(active.request_id, "stream_chunk", data, shown, metadata, active.request)
        self.scheduler.inbox.put(message)

    def receive_done(self, request_id: str, source: str, handed_to: Any = None) -> None:
        """Take the end of another stage's stream to this one, or of the client's."""
        with self._lock:
            active = self._requests.enter(request_id)
            if active is None:
                return
            active.note(source, DONE, handed_to)
            if self._streams_in(source):
                if self._waits_to_open(active):
                    active.early.append(partial(self.receive_done, request_id, source))
                    return
                if not active.takes_from(source):
                    return  # it had no chunks: its payload, which comes next, says so; or it is not the input
            if (rest := self._calls.rest(active, source)) is not None:
                self._put_chunk(active, source, rest, None)
            self._put_done(active, None if self.spec.enters is not None else self._names.own(source) or None)

    def _put_done(self, active: ActiveRequest, shown: str | None) -> None:
        for request_id in self.groups.known_as(active.request_id):
            self.scheduler.inbox.put(IncomingMessage(request_id, "stream_done", None, shown, None, active.request))

    def flow(self, request_id: str, target: str, *, paused: bool) -> None:
        """A reader takes no more chunks of a request from this stage, or takes them again. On the event loop only."""
        with self._lock:
            active = self._requests.get(request_id)
            if active is not None:
                self._outputs.flow(active, target, paused=paused)

    def _outputs_are_full(self, request_id: str, full: bool) -> None:
        """Let less of a request be made while too much of it waits for its readers."""
        for source in self.spec.stream_from:
            self._inflow.check_soon(request_id, source)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._pause, request_id, full)

    def _pause(self, request_id: str, paused: bool) -> None:
        with self._lock:
            pause = getattr(self.scheduler, "pause", None)
            if callable(pause):
                try:
                    for part_id in self.groups.known_as(request_id):
                        pause(part_id, paused)
                except BaseException as error:
                    self._fail(request_id, error)
            elif not self.spec.stream_from:
                (self._full.add if paused else self._full.discard)(request_id)
                self._outputs.hold(bool(self._full))

    def receive_failure(self, request_id: str, error: BaseException) -> None:
        """Fail a request of which a message for this stage could not be read."""
        with self._lock:
            if self._requests.enter(request_id) is not None:
                self._fail(request_id, error)

    def add_seal(self, request_id: str, seal: Seal) -> None:
        """Check at the result of the request that the sealed object, which comes next, was not changed."""
        active = self._requests.enter(request_id)
        if active is not None:
            active.seals.append(seal)

    def abort(self, request_id: str) -> None:
        """Drop every state of the request, and whatever arrives for it later. Idempotent."""
        with self._lock:
            active = self._requests.get(request_id)
            if active is not None:
                self._computes.note_dropped(active)
                self._abort_in_scheduler(request_id)
                self._metrics.aborted += 1
            self._end(request_id)
            self._outputs.cancel(request_id)

    def _fan_in(self, active: ActiveRequest, source: str, payload: StagePayload) -> StagePayload | None:
        """Keep a payload until the others have come. Returns the merged one when they have."""

        def merge(payloads: dict[str, StagePayload]) -> StagePayload:
            assert self._merge_fn is not None
            return active.payload(self._merge_fn({self._names.own(name): each for name, each in payloads.items()}))

        if active.fan_in is None:
            active.fan_in = FanIn(self.name, self.spec.wait_for, self._wait_for_fn, merge)
        return active.fan_in.add(source, payload)

    def _abort_in_scheduler(self, request_id: str) -> None:
        for part_id in self.groups.end(request_id):
            contained(partial(self._abort_one, part_id), None, f"`abort` of the scheduler of stage {self.name!r}")

    def _complete(self, active: ActiveRequest) -> None:
        self._metrics.completed += 1
        self._metrics.latency.observe(time.monotonic() - active.since)
        self._end(active.request_id)

    def _end(self, request_id: str) -> None:
        """End the request in this stage. A stage that is streamed to may finish before the stream does, so what the
        scheduler has queued or has begun anew for the rest of it is dropped too.
        """
        active = self._requests.end(request_id)
        if self._phases is not None:
            self._phases.ended(request_id)
        if active is None:
            return
        self._inflow.end(active)
        if active.request is not None and TRACEPARENT in active.request.metadata:
            self._outbound.span(self.name, request_id, time.monotonic() - active.since, active.error)
        if self.spec.stream_from:
            self._abort_in_scheduler(request_id)
        self.groups.end(request_id)

    def _fail(self, request_id: str, error: BaseException) -> None:
        active = self._requests.get(request_id)
        if threading.get_ident() != self._thread_id:
            # Later, on the loop: a scheduler's thread may hold its own locks. Until then nothing more of it is handed on.
            if active is not None:
                active.is_over = True
            self._loop.call_soon_threadsafe(self._fail, request_id, error)
            return
        if active is None:
            return
        self._metrics.failed += 1
        if issubclass(type(error), RelayCapacityError):  # what travels is as large as what the request brought
            logger.warning("request %s is too large: %s", request_id, message_of(error))
            error = RequestTooLargeError(_TOO_LARGE)
        try:
            info = describe(error, self.name)
        except BaseException:  # whatever it is, the request ends
            info = ErrorInfo(self.name, name_of(error), "(no message: it cannot be described)")
        active.error = info.error_type
        self._abort_in_scheduler(request_id)
        self._outbound.fail(self.name, request_id, info)
        self._end(request_id)
        self._outputs.cancel(request_id)
