"""Profiles of requests: every process records events while profiling is on, and the parent merges them into one Chrome trace.

Times are ``CLOCK_MONOTONIC``, which the processes of a host share. Format: Chrome's Trace Event Format, as Perfetto's importer reads
it (https://ui.perfetto.dev; ``src/trace_processor/importers/json`` in its sources). A request has an asynchronous track in the client
and in each stage, with its time queued and computing; sends and receives are slices of the thread that did them, joined by flow
arrows. When off, the cost is one attribute check per hop.

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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from omni_core.scheduling.base import IncomingMessage, OutgoingMessage

MAX_EVENTS = 400_000
"""Events that one process keeps; later ones are counted and dropped. About 200 bytes of the trace each."""

Event = dict[str, Any]


def flow_of(request_id: str, source: str, target: str, chunk_id: int | None) -> str:
    """The name of the arrow from a send to its receipt, which both ends know."""
    return f"{request_id}/{source}/{target}/{'payload' if chunk_id is None else chunk_id}"


def flow_id(name: str) -> str:
    """The name as 64 bits in hexadecimal, the same in every process."""
    return f"0x{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"


class DeviceRecorder(Protocol):
    """A profiler of a library's own operations over every thread of its process, which records from its making on."""

    def finish(self, scratch: Path) -> list[Event]:
        """Stop, and return the events, on the monotonic clock. ``scratch`` is a file that may be written and is removed."""
        ...


@frozen
class ProfileSummary:
    """The size of a profile: events and dropped events over all processes, and the processes that did not answer."""

    events: int
    dropped: int
    missing: list[str]


class Recorder:
    """One process's events. Its methods may be called from any thread."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.events: list[Event] = []
        self.dropped = 0
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

    def instant(self, request_id: str, name: str, stage: str, **args: Any) -> None:
        """A moment on the request's track in ``stage``."""
        if self._has_room(1):
            self.events.append(self._event("n", name, request_id, stage, **args))

    def slice(self, name: str, begin_ns: int, request_id: str, flow: str, *, starts: bool, **args: Any) -> None:
        """Work of this thread from ``begin_ns`` until now, and one end of the arrow called ``flow``."""
        duration = (time.monotonic_ns() - begin_ns) / 1e3
        if not self._has_room(2):
            return
        place = {"pid": os.getpid(), "tid": self._thread(), "ts": begin_ns / 1e3}
        args = {"request": request_id, "flow": flow, **args}
        self.events.append({"ph": "X", "cat": "transfer", "name": name, "dur": duration, "args": args, **place})
        arrow = {"ph": "s"} if starts else {"ph": "f", "bp": "e"}
        identity = {"cat": "hop", "name": "hop", "id": flow_id(flow), "args": {"flow": flow}}
        self.events.append({**arrow, **identity, **place})

    def finish(self) -> list[Event]:
        """Close the spans that are still open; return every event, and the names of the process and its threads."""
        for request_id, name in reversed(list(self._open)):
            self.end(request_id, name, unfinished=True)
        names = [{"ph": "M", "name": "process_name", "pid": os.getpid(), "args": {"name": self.process}}]
        names += [thread_name(os.getpid(), thread, name) for thread, name in self._threads.items()]
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
    """Records a stage's phases at its scheduler's queues: a request is queued until the scheduler takes it, then computing."""

    def __init__(self, recorder: Recorder, stage: str) -> None:
        self._recorder = recorder
        self._stage, self._queued, self._computing = stage, f"{stage}: queue", f"{stage}: compute"
        self._phases: dict[str, bool] = {}

    def inbox(self, action: str, messages: Sequence[IncomingMessage]) -> None:
        """A tap of the scheduler's inbox."""
        for message in messages:
            request_id = message.request_id
            if action == "put":
                if request_id and request_id not in self._phases:
                    self._phases[request_id] = False
                    self._recorder.begin(request_id, self._stage, self._stage)
                    self._recorder.begin(request_id, self._queued, self._stage)
            elif self._phases.get(request_id) is False:
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

    def ended(self, request_id: str) -> None:
        """The request is over in this stage."""
        if self._phases.pop(request_id, None) is not None:
            self._recorder.end(request_id, self._queued)
            self._recorder.end(request_id, self._computing)
            self._recorder.end(request_id, self._stage)


def thread_name(pid: int, thread: int, name: str) -> Event:
    """Return the event that names a thread."""
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": name}}


def merge(parts: Iterable[Path], own: Iterable[Event], destination: Path) -> int:
    """Merge every process's part into one trace; return the number of its events."""
    events = list(own)
    for part in parts:
        events += json.loads(part.read_text())
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clock": "CLOCK_MONOTONIC"}}
    destination.write_text(json.dumps(document))
    return len(events)
