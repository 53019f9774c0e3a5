"""Where a request's time goes: every process records while profiling is on, and the parent merges one Chrome trace.

Times are ``CLOCK_MONOTONIC``, which the processes of a host share. Format: Chrome's Trace Event Format, which Perfetto opens
(https://ui.perfetto.dev). A request is a nestable asynchronous track: in each stage its time queued and computing; sends and receives
are slices of the thread that did them, joined by flow arrows. Off, profiling costs one attribute test per hop.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

MAX_EVENTS = 400_000
"""Events that one process keeps; later ones are counted and dropped. About 100 bytes each."""

Event = dict[str, Any]


def flow_of(request_id: str, source: str, target: str, chunk_id: int | None) -> str:
    """The name of the arrow from a send to its receipt, which both ends know."""
    return f"{request_id}/{source}/{target}/{'payload' if chunk_id is None else chunk_id}"


@frozen
class ProfileSummary:
    """What a profile holds: events and dropped events over all processes, and the processes that did not answer."""

    events: int
    dropped: int
    missing: list[str]


class Recorder:
    """One process's events. Its methods may be called from any thread."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.events: list[Event] = []
        self.dropped = 0
        self._open: dict[tuple[str, str], Event] = {}
        self._threads: dict[int, str] = {}

    def begin(self, request_id: str, name: str) -> None:
        """Open a span on the request's track."""
        self._open[request_id, name] = event = self._event("b", name, request_id)
        self._add(event)

    def end(self, request_id: str, name: str, **args: Any) -> None:
        """Close it. Nothing happens if it was opened before the profile began."""
        if self._open.pop((request_id, name), None) is not None:
            self._add({**self._event("e", name, request_id), "args": args})

    def instant(self, request_id: str, name: str, **args: Any) -> None:
        """A moment on the request's track."""
        self._add({**self._event("n", name, request_id), "args": args})

    def slice(self, name: str, begin_ns: int, request_id: str, flow: str, *, starts: bool, **args: Any) -> None:
        """Work of this thread from ``begin_ns`` until now, and one end of the arrow called ``flow``."""
        now, thread = time.monotonic_ns(), self._thread()
        duration = max(now - begin_ns, 1_000) / 1e3
        place = {"pid": os.getpid(), "tid": thread, "ts": begin_ns / 1e3}
        self._add(
            {
                "ph": "X",
                "cat": "transfer",
                "name": name,
                "dur": duration,
                "args": {"request": request_id, **args},
                **place,
            }
        )
        arrow = {"ph": "s"} if starts else {"ph": "f", "bp": "e"}
        self._add({"cat": "hop", "name": "hop", "id": flow, **place, **arrow})

    def finish(self) -> list[Event]:
        """Every event, with what is still open closed, and the names of process and threads."""
        for request_id, name in list(self._open):
            self.end(request_id, name, unfinished=True)
        names = [{"ph": "M", "name": "process_name", "pid": os.getpid(), "args": {"name": self.process}}]
        names += [
            {"ph": "M", "name": "thread_name", "pid": os.getpid(), "tid": thread, "args": {"name": name}}
            for thread, name in self._threads.items()
        ]
        return [*names, *self.events]

    def _event(self, phase: str, name: str, request_id: str) -> Event:
        place = {"pid": os.getpid(), "tid": self._thread(), "ts": time.monotonic_ns() / 1e3}
        return {"ph": phase, "cat": "request", "id": request_id, "name": name, **place}

    def _thread(self) -> int:
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        return thread

    def _add(self, event: Event) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.dropped += 1


class _Message(Protocol):
    """What goes through a stage's queues."""

    @property
    def request_id(self) -> str: ...

    @property
    def type(self) -> str: ...


class StageRecorder:
    """A stage's phases, seen at its scheduler's queues: a request is queued until the scheduler takes it, then computing."""

    def __init__(self, recorder: Recorder, stage: str) -> None:
        self._recorder = recorder
        self._stage, self._queued, self._computing = stage, f"{stage}: queue", f"{stage}: compute"
        self._phases: dict[str, bool] = {}

    def inbox(self, action: str, messages: Sequence[_Message]) -> None:
        """A tap of the scheduler's inbox."""
        for message in messages:
            request_id = message.request_id
            if action == "put":
                if request_id and request_id not in self._phases:
                    self._phases[request_id] = False
                    self._recorder.begin(request_id, self._stage)
                    self._recorder.begin(request_id, self._queued)
            elif self._phases.get(request_id) is False:
                self._phases[request_id] = True
                self._recorder.end(request_id, self._queued)
                self._recorder.begin(request_id, self._computing)

    def outbox(self, action: str, messages: Sequence[_Message]) -> None:
        """A tap of its outbox."""
        if action != "put":
            return
        for message in messages:
            if message.type == "stream":
                self._recorder.instant(message.request_id, f"{self._stage}: chunk")
            else:
                self._recorder.end(message.request_id, self._computing)

    def ended(self, request_id: str) -> None:
        """The request is over in this stage."""
        if self._phases.pop(request_id, None) is not None:
            self._recorder.end(request_id, self._queued)
            self._recorder.end(request_id, self._computing)
            self._recorder.end(request_id, self._stage)


class TorchRecorder:
    """torch's own profiler over every thread of this process, on the same clock."""

    def __init__(self) -> None:
        import torch
        from torch._C._profiler import _ExperimentalConfig

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(
            activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True)
        )
        self._profile.start()

    def finish(self, scratch: Path) -> list[Event]:
        """Its events, from Unix time to the monotonic clock. ``scratch`` is a file that is written and removed."""
        offset_us = (time.time_ns() - time.monotonic_ns()) / 1e3
        self._profile.stop()
        self._profile.export_chrome_trace(str(scratch))
        document = json.loads(scratch.read_text())
        scratch.unlink()
        base_us = document.get("baseTimeNanoseconds", 0) / 1e3
        events = [event for event in document["traceEvents"] if event.get("ph") in ("X", "i", "s", "f", "t")]
        # Only what lies in this process: kineto adds tracks of its own, whose names would collide between processes.
        return [
            {**event, "ts": float(event["ts"]) + base_us - offset_us, "cat": f"torch,{event.get('cat', '')}"}
            for event in events
            if event.get("pid") == os.getpid() or str(event.get("cat")) in ("kernel", "gpu_memcpy", "gpu_memset")
        ]


def write_events(path: Path, events: Iterable[Event]) -> int:
    """One process's part of a trace; how many events it has."""
    listed = list(events)
    path.write_text(json.dumps(listed))
    return len(listed)


def merge(parts: Iterable[Path], own: Iterable[Event], destination: Path) -> int:
    """Write one trace out of every process's part; how many events it has."""
    events = list(own)
    for part in parts:
        events += json.loads(part.read_text())
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clock": "CLOCK_MONOTONIC"}}
    destination.write_text(json.dumps(document))
    return len(events)
