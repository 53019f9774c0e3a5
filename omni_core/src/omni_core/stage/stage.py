"""A stage: the IO shell around one scheduler (seed 002, "Stage"). It reads, fans in, hands on, and contains failures.

The stage never asks which scheduler it has. Whatever one request makes a projection, a route, a merge or the codec raise
fails that request, with this stage's name, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from attrs import define, field

from omni_core.control.lanes import Lanes, Later
from omni_core.errors import ConfigError
from omni_core.observe.metrics import StageMetrics
from omni_core.observe.profiler import Recorder, StageRecorder, flow_of
from omni_core.observe.telemetry import TRACEPARENT
from omni_core.protocol.error_info import describe, message_of
from omni_core.protocol.messages import DataReadyMessage, ErrorInfo, OmniRequest, StagePayload
from omni_core.protocol.specs import StageSpec
from omni_core.references import load
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage, Scheduler
from omni_core.stage import mutation
from omni_core.stage.fan_in import FanIn, quoted

logger = logging.getLogger(__name__)

MOST_OUTPUTS = 32
"""Outputs that may wait in a stage to be handed on; then its scheduler begins nothing new."""

REMEMBERED_ENDS = 20_000
"""How many finished or aborted request ids a stage remembers, to drop what arrives for them late."""


class Outside(Protocol):
    """What a stage needs of its process: ways to reach other stages and the coordinator."""

    lock: threading.RLock
    """Held around every change of any stage of the process."""

    def send(self, target: str, value: Any, request: OmniRequest | None, **message: Any) -> tuple[int, Later | None]:
        """Send a value to a stage of another process (see ``Transfer.send``); its size in bytes, and what must be awaited."""

    def signal(self, message: DataReadyMessage, request: OmniRequest | None) -> None:
        """Send a message without a value to a stage of another process."""

    def local(self, target: str) -> Stage | None:
        """The stage of that name in this process, if it is here."""

    def complete(self, request_id: str, stage: str, data: Any, error: ErrorInfo | None) -> None:
        """Report the end of a request in this stage to the coordinator."""

    def stream_to_client(self, request_id: str, stage: str, chunk_id: int, data: Any) -> None:
        """Send a partial result to the coordinator."""

    def release(self, request_id: str) -> None:
        """Free what the relay holds for a request that failed."""

    def span(self, request_id: str, stage: str, seconds: float, error: str) -> None:
        """Report the time of a traced request in a stage."""

    def scheduler_died(self) -> None:
        """End the process: the loop of one of its schedulers has ended by itself."""


PAYLOAD, DONE = 1, 2

Arrivals = dict[str, tuple[int, Any]]
"""What of a request has come, by source: :data:`PAYLOAD` and :data:`DONE` as bits, and the source's ``handed_to``."""


@define
class _Active:
    """One request inside this stage."""

    request: OmniRequest | None = None
    fan_in: FanIn | None = None
    chunks_sent: dict[str, int] = field(factory=dict)
    arrived: Arrivals = field(factory=dict)
    since: float = field(factory=time.monotonic)
    seals: list[mutation.Seal] = field(factory=list)
    is_failing: bool = False
    error: str = ""


class Stage:
    """One stage of a pipeline. Its methods run on the event loop of its process; the scheduler has its own thread.

    Args:
        abort: how the scheduler is told to drop a request, if not by its own ``abort``.
    """

    def __init__(
        self, spec: StageSpec, scheduler: Scheduler, outside: Outside, abort: Callable[[str], None] | None = None
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.scheduler = scheduler
        self._abort_in_scheduler = abort or scheduler.abort
        self._outside = outside
        self._loop = asyncio.get_running_loop()
        self._active: dict[str, _Active] = {}
        self._ended: OrderedDict[str, Arrivals] = OrderedDict()
        self._lock = outside.lock
        self._thread_id = threading.get_ident()
        self._lanes: Lanes[str] = Lanes(self._fail, self._lock, self._regulate)
        self._regulation = threading.Lock()
        self._metrics = StageMetrics()
        self._checks_mutation = mutation.enabled()
        self._recorder: Recorder | None = None
        self._phases: StageRecorder | None = None
        self._route_fn = _function(spec.route_fn)
        self._merge_fn = _function(spec.merge_fn)
        self._wait_for_fn = _function(spec.wait_for_fn)
        self._stream_done_to_fn = _function(spec.stream_done_to_fn)
        self._projections = {target: load(reference) for target, reference in spec.project_payload.items()}
        self._drain_is_due = False
        # Whether every output stays in the process: then the thread that made it can hand it over by itself.
        self._stays_here = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run_scheduler, name=f"scheduler-{self.name}", daemon=True)

    # --- life --------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to compute. Every stage of the process exists by now."""
        targets = [*self.spec.next, *self.spec.stream_to]
        self._stays_here = bool(targets) and all(self._outside.local(target) is not None for target in targets)
        self.scheduler.outbox.on_put = self._wake
        self._thread.start()

    def stop(self) -> None:
        """Ask the scheduler to stop after its running step."""
        self._stopping = True
        self.scheduler.stop()

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until it has."""
        self._thread.join(timeout)

    def _run_scheduler(self) -> None:
        try:
            self.scheduler.start()
            error = RuntimeError("its loop returned without being told to stop")
        except BaseException as raised:
            error = RuntimeError(f"its loop ended with {message_of(raised, with_type=True)}")
            error.__cause__ = raised
        if not self._stopping:
            logger.error("the scheduler of stage %r: %s\n%s", self.name, error, describe(error, self.name).traceback)
            self._loop.call_soon_threadsafe(self._scheduler_died, error)

    def _scheduler_died(self, error: RuntimeError) -> None:
        for request_id in list(self._active):
            self._fail(request_id, error)
        self._outside.scheduler_died()

    def profile(self, recorder: Recorder | None) -> None:
        """Record what happens to requests here from now on; ``None``: no more."""
        self._recorder = recorder
        self._phases = StageRecorder(recorder, self.name) if recorder is not None else None
        self.scheduler.inbox.tap = self._phases.inbox if self._phases is not None else None
        self.scheduler.outbox.tap = self._phases.outbox if self._phases is not None else None

    def statistics(self) -> dict[str, float]:
        """The scheduler's counters and how many requests are inside this stage."""
        offered = getattr(self.scheduler, "statistics", None)
        counters: dict[str, float] = dict(offered()) if offered is not None else {}
        return {
            **counters,
            **self._metrics.as_counters(),
            "queued": float(len(self.scheduler.inbox)),
            "in_flight": float(len(self._active)),
            "sends_pending": float(len(self._lanes)),
        }

    def arrivals(self, request_id: str) -> Arrivals:
        """What of a request has come so far, by source; also of one that has lately ended here."""
        active = self._active.get(request_id)
        return active.arrived if active is not None else self._ended.get(request_id, {})

    def waiting(self, request_id: str) -> str | None:
        """Say what a request does here, after the name of the stage; ``None`` if it is not here."""
        with self._lock:
            active = self._active.get(request_id)
            if active is None:
                return None
            if active.fan_in is not None:
                return f"waits for {quoted(active.fan_in.missing())}"
            ask = getattr(self.scheduler, "waiting", None)
            missing: str = ask(request_id) if ask is not None else ""
            if missing:
                return f"waits for {missing}"
            return "waits to hand on its output" if request_id in self._lanes else "computes it or has it queued"

    # --- in ----------------------------------------------------------------------------------------------------------
    def receive_payload(self, payload: StagePayload, source: str | None, handed_to: Any = None) -> None:
        """A payload from the coordinator (``source`` is ``None``) or from another stage."""
        request_id = payload.request_id
        with self._lock:
            active = self._enter(request_id)
            if active is None:
                return
            try:
                if active.request is None:
                    active.request = payload.request.without_inputs()
                if source is not None:
                    _note(active.arrived, source, PAYLOAD, handed_to)
                    if self.spec.wait_for:
                        if active.fan_in is None:
                            active.fan_in = FanIn(self.name, self.spec.wait_for, self._wait_for_fn, self._merge)
                        merged = active.fan_in.add(source, payload)
                        if merged is None:
                            return
                        active.fan_in, payload = None, merged
                self._put(IncomingMessage(request_id, "new_request", payload, source, None, active.request))
            except BaseException as error:
                self._fail(request_id, error)

    def receive_chunk(self, request_id: str, source: str, value: tuple[Any, Any, OmniRequest | None]) -> None:
        """One stream chunk of another stage: ``(data, metadata, request or None)``."""
        with self._lock:
            active = self._enter(request_id)
            if active is None:
                return
            data, metadata, request = value
            if active.request is None:
                active.request = request
            self._put(IncomingMessage(request_id, "stream_chunk", data, source, metadata, active.request))

    def receive_done(self, request_id: str, source: str, handed_to: Any = None) -> None:
        """Another stage's stream to this one is complete."""
        with self._lock:
            active = self._enter(request_id)
            if active is not None:
                _note(active.arrived, source, DONE, handed_to)
                self._put(IncomingMessage(request_id, "stream_done", None, source, None, active.request))

    def receive_failure(self, request_id: str, error: BaseException) -> None:
        """A message for this stage could not be read: its request fails here."""
        with self._lock:
            if self._enter(request_id) is not None:
                self._fail(request_id, error)

    def abort(self, request_id: str) -> None:
        """Drop every state of the request, and whatever arrives for it later. Idempotent."""
        with self._lock:
            if request_id in self._active:
                self._abort_in_scheduler(request_id)
                self._metrics.aborted += 1
            self._end(request_id)
            self._lanes.cancel(request_id)

    def _put(self, message: IncomingMessage) -> None:
        self.scheduler.inbox.put(message)

    def _enter(self, request_id: str) -> _Active | None:
        if request_id in self._ended:
            return None
        active = self._active.get(request_id)
        if active is None:
            active = self._active[request_id] = _Active()
        return active

    def _end(self, request_id: str) -> None:
        """The request is over in this stage. A stage that is streamed to may finish before the stream does, so what the
        scheduler has queued or has begun anew for the rest of it is dropped too.
        """
        active = self._active.pop(request_id, None)
        if self._phases is not None:
            self._phases.ended(request_id)
        if active is not None and active.request is not None and TRACEPARENT in active.request.metadata:
            self._outside.span(request_id, self.name, time.monotonic() - active.since, active.error)
        if active is not None and self.spec.stream_from:
            self._abort_in_scheduler(request_id)
        if request_id not in self._ended:
            self._ended[request_id] = active.arrived if active is not None else {}
        if len(self._ended) > REMEMBERED_ENDS:
            self._ended.popitem(last=False)

    def _merge(self, payloads: dict[str, StagePayload]) -> StagePayload:
        assert self._merge_fn is not None
        first = next(iter(payloads.values()))
        return self._as_payload(first.request_id, self._active[first.request_id], self._merge_fn(payloads))

    # --- out ---------------------------------------------------------------------------------------------------------
    def _wake(self) -> None:
        """There is output. Called in the thread that made it, so it waits for nothing, the lock included."""
        if self._stays_here and threading.get_ident() != self._thread_id and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()
            return
        self._regulate()
        if self._drain_is_due:
            return
        self._drain_is_due = True  # set back before the outbox is drained, so what was put before is drained too
        try:
            self._loop.call_soon_threadsafe(self._drain_on_loop)
        except RuntimeError:
            return  # the loop is closed: the process is ending

    def _drain_on_loop(self) -> None:
        self._drain_is_due = False
        with self._lock:
            self._drain()
        self._regulate()

    def _regulate(self) -> None:
        """Let the scheduler begin new requests or not, after a change of what waits to be handed on. From any thread.

        A stage that is streamed to is never held: others may hold memory until it has seen the end of what it has begun.
        """
        if self.spec.stream_from:
            return
        with self._regulation:
            self.scheduler.inbox.hold(len(self._lanes) + len(self.scheduler.outbox) >= MOST_OUTPUTS)

    def _drain(self) -> None:
        for message in self.scheduler.outbox.drain():
            active = self._active.get(message.request_id)
            if active is None:
                continue
            try:
                self._lanes.run(message.request_id, partial(self._hand_on, message, active))
            except BaseException as error:
                self._fail(message.request_id, error)

    def _hand_on(self, message: OutgoingMessage, active: _Active) -> Later | None:
        if message.request_id not in self._active or active.is_failing:
            return None
        if message.type == "stream":
            return self._stream(message, active)
        if message.type == "result":
            return self._result(message, active)
        self._fail(message.request_id, message.data)
        return None

    def _stream(self, message: OutgoingMessage, active: _Active) -> Later | None:
        if message.target is None and self.spec.terminal:
            if active.request is not None and active.request.stream:
                chunk_id = _count(active.chunks_sent, "")
                self._outside.stream_to_client(message.request_id, self.name, chunk_id, message.data)
            return None
        targets = self.spec.stream_to if message.target is None else [message.target]
        unknown = [target for target in targets if target not in self.spec.stream_to]
        if unknown:
            raise ConfigError(
                f"a stream chunk is for {unknown[0]!r}, which stages[{self.name}].stream_to does not name"
            )
        return _all(self._send_chunk(message, target, active) for target in targets)

    def _send_chunk(self, message: OutgoingMessage, target: str, active: _Active) -> Later | None:
        chunk_id = _count(active.chunks_sent, target)
        # The first chunk carries the request, because it may come before the payload does.
        value = (message.data, message.metadata, active.request if chunk_id == 0 else None)
        local = self._outside.local(target)
        if local is not None:
            self._seal(local, message.request_id, message.data)
            local.receive_chunk(message.request_id, self.name, value)
            self._metrics.sent(target, 0, 0.0)
            return None
        return self._send(
            target,
            value,
            active.request,
            request_id=message.request_id,
            stage=target,
            from_stage=self.name,
            is_stream=True,
            chunk_id=chunk_id,
        )

    def _result(self, message: OutgoingMessage, active: _Active) -> Later | None:
        for sealed in active.seals:
            sealed.check(self.name)
        payload = self._as_payload(message.request_id, active, message.data)
        if self.spec.terminal:
            self._outside.complete(message.request_id, self.name, payload.data, None)
            self._complete(message.request_id, active)
            return None
        done_targets = self._stream_done_targets(payload)
        targets = self._next_targets(payload)
        projected = [(target, self._project(payload, target, active)) for target in targets]
        self._own_containers(projected)
        chosen = self._route_fn is not None or self._stream_done_to_fn is not None
        handed_to = [targets, done_targets] if chosen else None
        for target in done_targets:
            self._send_done(payload, target, handed_to)
        pending = _all([self._send_payload(each, target, handed_to) for target, each in projected])
        if pending is None:
            self._complete(message.request_id, active)
            return None
        return partial(self._complete_after, message.request_id, active, pending)

    async def _complete_after(self, request_id: str, active: _Active, pending: Later) -> None:
        await pending()
        with self._lock:
            self._complete(request_id, active)

    def _complete(self, request_id: str, active: _Active) -> None:
        self._metrics.completed += 1
        self._metrics.latency.observe(time.monotonic() - active.since)
        self._end(request_id)

    def _stream_done_targets(self, payload: StagePayload) -> list[str]:
        if self._stream_done_to_fn is None:
            return self.spec.stream_to
        names = self._stream_done_to_fn(payload.request_id, payload)
        return self._subset("stream_done_to_fn", names, self.spec.stream_to, may_be_empty=True)

    def _next_targets(self, payload: StagePayload) -> list[str]:
        if self._route_fn is None:
            return self.spec.next
        return self._subset("route_fn", self._route_fn(payload.request_id, payload), self.spec.next)

    def _subset(self, field_name: str, names: Any, allowed: Sequence[str], *, may_be_empty: bool = False) -> list[str]:
        chosen = [names] if isinstance(names, str) else names
        if (
            not isinstance(chosen, list | tuple)
            or not all(name in allowed for name in chosen)
            or not (chosen or may_be_empty)
            or len(set(chosen)) < len(chosen)
        ):
            raise ConfigError(
                f"stages[{self.name}].{field_name} returned {names!r}; "
                f"it must return stages out of {list(allowed)}, each once"
            )
        return list(chosen)

    def _project(self, payload: StagePayload, target: str, active: _Active) -> StagePayload:
        projection = self._projections.get(target)
        return payload if projection is None else self._as_payload(payload.request_id, active, projection(payload))

    def _own_containers(self, projected: list[tuple[str, StagePayload]]) -> None:
        """Where one container would reach several stages by reference, give each its own (tensors stay shared)."""
        seen: set[int] = set()
        for index, (target, payload) in enumerate(projected):
            if id(payload.data) in seen and isinstance(payload.data, dict | list):
                projected[index] = (target, StagePayload(payload.request_id, payload.request, payload.data.copy()))
            seen.add(id(payload.data))

    def _send_payload(self, payload: StagePayload, target: str, handed_to: Any) -> Later | None:
        local = self._outside.local(target)
        if local is not None:
            self._seal(local, payload.request_id, payload.data)
            local.receive_payload(payload, self.name)
            self._metrics.sent(target, 0, 0.0)
            return None
        return self._send(
            target,
            payload,
            payload.request,
            request_id=payload.request_id,
            stage=target,
            from_stage=self.name,
            handed_to=handed_to,
        )

    def _send(self, target: str, value: Any, request: OmniRequest | None, **message: Any) -> Later | None:
        begin = time.monotonic()
        nbytes, pending = self._outside.send(target, value, request, **message)
        if self._recorder is not None:
            flow = flow_of(message["request_id"], self.name, target, message.get("chunk_id"))
            self._recorder.slice(
                f"send to {target}", int(begin * 1e9), message["request_id"], flow, starts=True, bytes=nbytes
            )
        if pending is None:
            self._metrics.sent(target, nbytes, time.monotonic() - begin)
            return None
        return partial(self._count_when_sent, message["request_id"], target, nbytes, begin, pending)

    async def _count_when_sent(self, request_id: str, target: str, nbytes: int, begin: float, pending: Later) -> None:
        await pending()
        if self._recorder is not None:
            waited = time.monotonic() - begin
            self._recorder.instant(request_id, f"{self.name}: sent to {target}", self.name, waited=waited)
        self._metrics.sent(target, nbytes, time.monotonic() - begin)

    def _send_done(self, payload: StagePayload, target: str, handed_to: Any) -> None:
        local = self._outside.local(target)
        if local is not None:
            local.receive_done(payload.request_id, self.name)
            return
        message = DataReadyMessage(
            payload.request_id, target, self.name, is_stream=True, is_done=True, handed_to=handed_to
        )
        self._outside.signal(message, payload.request)

    def _seal(self, target: Stage, request_id: str, value: Any) -> None:
        """In the debug mode: let ``target`` check, when it is done with the request, that nobody changed what it got."""
        if self._checks_mutation:
            active = target._enter(request_id)
            if active is not None:
                active.seals.append(mutation.seal(value, self.name))

    def _as_payload(self, request_id: str, active: _Active, value: Any) -> StagePayload:
        """``value`` as a payload of the same request, without inputs: those stop at the entry stage."""
        data = value.data if isinstance(value, StagePayload) else value
        if active.request is None:
            active.request = OmniRequest()
        return StagePayload(request_id, active.request, data)

    # --- failure -----------------------------------------------------------------------------------------------------
    def _fail(self, request_id: str, error: BaseException) -> None:
        if threading.get_ident() != self._thread_id:
            # Later, on the loop: a scheduler's thread may hold its own locks. Until then nothing more of it is handed on.
            active = self._active.get(request_id)
            if active is not None:
                active.is_failing = True
            self._loop.call_soon_threadsafe(self._fail, request_id, error)
            return
        if request_id not in self._active:
            return
        self._metrics.failed += 1
        info = describe(error, self.name)
        self._active[request_id].error = info.error_type
        self._abort_in_scheduler(request_id)
        self._outside.complete(request_id, self.name, None, info)
        self._outside.release(request_id)
        self._end(request_id)
        self._loop.call_soon(self._lanes.cancel, request_id)  # not at once: this may run inside that lane


def _function(reference: str | None) -> Callable[..., Any] | None:
    return None if reference is None else load(reference)


def _count(counters: dict[str, int], key: str) -> int:
    counters[key] = counters.get(key, -1) + 1
    return counters[key]


def _note(arrived: Arrivals, source: str, what: int, handed_to: Any) -> None:
    seen, before = arrived.get(source, (0, None))
    arrived[source] = (seen | what, handed_to if handed_to is not None else before)


def _all(pending: Any) -> Later | None:
    """All that is left of a series of sends, as one; ``None`` if nothing has to be waited for."""
    waiting = [each for each in pending if each is not None]
    if not waiting:
        return None

    async def wait() -> None:
        for each in waiting:
            await each()

    return wait
