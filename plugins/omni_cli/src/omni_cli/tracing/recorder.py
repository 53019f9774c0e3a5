"""Profiles of requests: every process records events while profiling is on, and the parent merges them into one Chrome trace.

Times are ``CLOCK_MONOTONIC``, which the processes of a machine share; those of other machines are shifted. Format: Chrome's Trace Event
Format, as Perfetto's importer reads it (https://ui.perfetto.dev; ``src/trace_processor/importers/json`` in its sources). A request has an
asynchronous track in the client and in each stage, with its time queued and computing; sends and receives are slices of the thread that
did them, joined by flow arrows. When off, the cost is one attribute check per hop.

The importer drops, or cuts off, what breaks its rules: a flow's id is an integer or a string of hexadecimal digits, unique with category
and name, and the flow binds to the slice that is open on its thread then; slices of a thread, and spans of an asynchronous track, nest
and never overlap in part. Stages work on a request at the same time, so each has a track of its own: an id local to its process.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from omni_core.api import IncomingMessage, MessageQueue, OutgoingMessage, Scheduler
from omni_core.runtime_api import Flow

MAX_EVENTS = 400_000
"""Events that one process keeps; later ones are counted and dropped. About 200 bytes of the trace each."""

_WAIT_NS = 1_000_000
"""A thread that did not run for so long between two messages has waited for the second."""

_PID_BITS = 22
"""Linux has no larger numbers of processes."""

Event = dict[str, Any]


def flow_of(request_id: str, flow: Flow) -> str:
    """The name of the arrow from a send to its receipt, which both ends know."""
    source, target, chunk_id = flow
    return f"{request_id}/{source}/{target}/{'payload' if chunk_id is None else chunk_id}"


def flow_id(name: str) -> str:
    """The name as 64 bits in hexadecimal, the same in every process."""
    return f"0x{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"


class DeviceRecorder(Protocol):
    """A profiler of a library's own operations over every thread of its process, which records from its making on."""

    def finish(self, scratch: Path) -> list[Event]:
        """Stop, and return the events, on the monotonic clock. ``scratch`` is a file that may be written and is removed."""
        ...


class Recorder:
    """One process's events. Its methods may be called from any thread."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.events: list[Event] = []
        self.dropped = 0
        self._processor = time.process_time_ns()
        self._open: dict[tuple[str, str], str] = {}
        self._threads: dict[int, str] = {}

    def begin(self, request_id: str, name: str, stage: str = "") -> None:
        """Open a span on the request's track in ``stage``; without a stage, on its track in this process."""
        if self._has_room(2):  # for its end too
            self._open[request_id, name] = stage
            self.events.append(self._event("b", name, request_id, stage))

    def end(self, request_id: str, name: str, **args: Any) -> None:
        """Close it. Nothing happens if it was opened before the profile began."""
        stage = self._open.pop((request_id, name), None)
        if stage is not None:
            self.events.append(self._event("e", name, request_id, stage, **args))

    def turn(self, stage: str, begin_ns: int, **args: Any) -> None:
        """A turn of a stage's scheduler in this thread, from ``begin_ns`` until now."""
        if self._has_room(1):
            place = {"pid": os.getpid(), "tid": self._thread(), "ts": begin_ns / 1e3}
            duration = (time.monotonic_ns() - begin_ns) / 1e3
            self.events.append(
                {
                    "ph": "X",
                    "cat": "turn",
                    "name": f"{stage}: turn",
                    "dur": duration,
                    "args": {"stage": stage, **args},
                    **place,
                }
            )

    def instant(self, request_id: str, name: str, stage: str, **args: Any) -> None:
        """A moment on the request's track in ``stage``."""
        if self._has_room(1):
            self.events.append(self._event("n", name, request_id, stage, **args))

    def slice(self, name: str, begin_ns: int, request_id: str, flow: Flow, *, starts: bool, **args: Any) -> None:
        """Work of this thread from ``begin_ns`` until now, and one end of the arrow of ``flow``."""
        duration = (time.monotonic_ns() - begin_ns) / 1e3
        if not self._has_room(2):
            return
        place = {"pid": os.getpid(), "tid": self._thread(), "ts": begin_ns / 1e3}
        arrow_name = flow_of(request_id, flow)
        args = {"request": request_id, "flow": arrow_name, **args}
        self.events.append({"ph": "X", "cat": "transfer", "name": name, "dur": duration, "args": args, **place})
        arrow = {"ph": "s"} if starts else {"ph": "f", "bp": "e"}
        identity = {"cat": "hop", "name": "hop", "id": flow_id(arrow_name), "args": {"flow": arrow_name}}
        self.events.append({**arrow, **identity, **place})

    def attach(
        self, stage: str, inbox: MessageQueue[IncomingMessage], scheduler: Scheduler | None = None
    ) -> StageRecorder:
        """Record what a stage's inbox gets and gives, and with ``scheduler`` its outbox and turns too, until it is detached."""
        return StageRecorder(self, stage, inbox, scheduler)

    def finish(self) -> list[Event]:
        """Close the spans that are still open; return every event, and the names of the process and its threads."""
        for request_id, name in reversed(list(self._open)):
            self.end(request_id, name, unfinished=True)
        names = [{"ph": "M", "name": "process_name", "pid": os.getpid(), "args": {"name": self.process}}]
        names += [thread_name(os.getpid(), thread, name) for thread, name in self._threads.items()]
        cpu = (time.process_time_ns() - self._processor) / 1e3
        place = {"pid": os.getpid(), "tid": os.getpid(), "ts": time.monotonic_ns() / 1e3}
        names.append({"ph": "i", "cat": "process", "name": "processor time", "args": {"cpu": cpu}, **place})
        return [*names, *self.events]

    def _event(self, phase: str, name: str, request_id: str, stage: str, **args: Any) -> Event:
        place = {"pid": os.getpid(), "tid": self._thread(), "ts": time.monotonic_ns() / 1e3}
        identity = {"cat": "request", "name": name, "id2": {"local": f"{request_id}/{stage}"}}
        return {"ph": phase, **identity, **place, "args": {"request": request_id, **args}}

    def _thread(self) -> int:
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        return thread

    def _has_room(self, count: int) -> bool:
        """Return whether ``count`` more events fit beside the ends of the open spans; otherwise count them as dropped."""
        fits = len(self.events) + len(self._open) + count <= MAX_EVENTS
        if not fits:
            self.dropped += count
        return fits


class StageRecorder:
    """Records a stage's phases at its scheduler's queues: a request is queued until the scheduler takes it, then computing.

    Args:
        inbox: the queue of its requests.
        scheduler: records its results, and what a turn adds to the counters that it offers.
    """

    def __init__(
        self,
        recorder: Recorder,
        stage: str,
        inbox: MessageQueue[IncomingMessage],
        scheduler: Scheduler | None = None,
    ) -> None:
        self._recorder, self._inbox, self._scheduler = recorder, inbox, scheduler
        self._statistics: Callable[[], Mapping[str, float]] | None = getattr(scheduler, "statistics", None)
        self._woken = self._idle = self._taken = 0
        self._stage, self._queued, self._computing = stage, f"{stage}: queue", f"{stage}: compute"
        self._phases: dict[str, bool] = {}
        self._parts: dict[str, list[str]] = {}
        self._tap(self)

    def detach(self) -> None:
        """Record no more."""
        self._tap(None)

    def _tap(self, tap: StageRecorder | None) -> None:
        scheduler: Any = self._scheduler
        if self._statistics is not None and hasattr(scheduler, "around_turn"):
            scheduler.around_turn = None if tap is None else tap.turn
        self._inbox.tap = None if tap is None else tap.inbox
        if scheduler is not None:
            scheduler.outbox.tap = None if tap is None else tap.outbox

    def inbox(self, action: str, messages: Sequence[IncomingMessage]) -> None:
        """A tap of the scheduler's inbox."""
        for message in messages:
            request_id = message.request_id
            if action == "put":
                if request_id and request_id not in self._phases:
                    self._phases[request_id] = False
                    whole, is_part, _ = request_id.rpartition("#")  # REQUEST#ROLE, of a stage with expand_fn
                    if is_part:
                        self._parts.setdefault(whole, []).append(request_id)
                    self._recorder.begin(request_id, self._stage, self._stage)
                    self._recorder.begin(request_id, self._queued, self._stage)
            else:
                self._took()
            if action != "put" and self._phases.get(request_id) is False:
                self._phases[request_id] = True
                self._recorder.end(request_id, self._queued)
                self._recorder.begin(request_id, self._computing, self._stage)

    def outbox(self, action: str, messages: Sequence[OutgoingMessage]) -> None:
        """A tap of its outbox."""
        if action != "put":
            return
        for message in messages:
            if message.type == "stream":
                self._recorder.instant(message.request_id, f"{self._stage}: chunk", self._stage)
            else:
                self._recorder.end(message.request_id, self._computing)

    def turn(self, turn: Callable[[], bool]) -> bool:
        """Make a turn of the scheduler and record it, from the message that ended its wait: its time, the processor's share of it
        (``cpu``, in us), the messages that it took and what it added to the scheduler's counters.
        """
        assert self._statistics is not None
        begin, processor, before = time.monotonic_ns(), time.thread_time_ns(), self._statistics()
        self._woken, self._idle, self._taken = begin, begin - processor, 0
        goes_on = turn()
        after, cpu = self._statistics(), (time.thread_time_ns() - processor) / 1e3
        added = {name: value - before[name] for name, value in after.items() if value != before.get(name, value)}
        if added or self._taken:
            self._recorder.turn(self._stage, self._woken, cpu=cpu, taken=self._taken, **added)
        return goes_on

    def _took(self) -> None:
        """Count a message; the turn begins anew with one that it has waited for."""
        now = time.monotonic_ns()
        idle = now - time.thread_time_ns()
        if idle - self._idle > _WAIT_NS:
            self._woken = now
        self._idle, self._taken = idle, self._taken + 1

    def ended(self, request_id: str) -> None:
        """The request is over in this stage, with its parts."""
        for each in (request_id, *self._parts.pop(request_id, ())):
            if self._phases.pop(each, None) is not None:
                self._recorder.end(each, self._queued)
                self._recorder.end(each, self._computing)
                self._recorder.end(each, self._stage)


def thread_name(pid: int, thread: int, name: str) -> Event:
    """Return the event that names a thread."""
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": name}}


@frozen
class ProfilePart:
    """The events of one process, as JSON. ``machine``: a number, 0 for this one; ``clock``: how far its clock is ahead, in ns."""

    events: bytes
    machine: int = 0
    clock: int = 0

    def read(self) -> list[Event]:
        """Return the events on this machine's clock, with numbers of processes and threads that no other machine uses."""
        events: list[Event] = json.loads(self.events)
        for event in events if self.machine else ():
            if "ts" in event:
                event["ts"] -= self.clock / 1e3
            for key in ("pid", "tid"):
                if isinstance(event.get(key), int):
                    event[key] += self.machine << _PID_BITS
        return events


def clock_ahead(asked: int, there: tuple[int, int], answered: int) -> int:
    """Return how far another machine's clock is ahead, in ns: both of its times lie between ours, and half of the way to each side."""
    return ((there[0] - asked) + (there[1] - answered)) // 2


def merge(parts: Iterable[ProfilePart], own: Iterable[Event], destination: Path) -> int:
    """Merge every process's part into one trace; return the number of its events."""
    events = list(own)
    for part in parts:
        events += part.read()
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clock": "CLOCK_MONOTONIC"}}
    destination.write_text(json.dumps(document))
    return len(events)
