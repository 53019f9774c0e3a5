"""torch's profiler as a part of a pipeline's profile (``omni profile --torch STAGE``; see :mod:`omni_cli.tracing.recorder`)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig

from omni_cli.tracing.recorder import Event, flow_id, thread_name

_DEVICE_THREADS = 1 << 22
"""The first ``tid`` of the tracks of an accelerator's streams: no thread id of Linux is as large."""


class TorchRecorder:
    """torch's own profiler over every thread of this process: operations on the CPU, and kernels where there is a GPU."""

    def __init__(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        settings = _ExperimentalConfig(profile_all_threads=True)
        self._profile = torch.profiler.profile(activities=activities, experimental_config=settings)
        self._profile.start()

    def finish(self, scratch: Path) -> list[Event]:
        """Its events, from Unix time to the monotonic clock. ``scratch`` is a file that is written and removed."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        self._profile.stop()
        self._profile.export_chrome_trace(str(scratch))
        document = json.loads(scratch.read_text())
        scratch.unlink()
        return torch_events(document["traceEvents"], os.getpid(), document.get("baseTimeNanoseconds", 0) - offset_ns)


def torch_events(events: Iterable[Event], pid: int, shift_ns: int) -> list[Event]:
    """Convert the events that kineto recorded in process ``pid``, shifted by ``shift_ns``.

    Kineto numbers flows, devices and streams alike in every process (libkineto/src/output_json.cpp), so here flows get ids of the
    process, and a device's stream becomes a thread of it. Tracks of kineto's own, like its iterations, are left out.
    """
    streams: dict[tuple[int, int], int] = {}
    moved = []
    for event in events:
        phase, category = event["ph"], event.get("cat")
        if category in ("kernel", "gpu_memcpy", "gpu_memset") or (phase, category) == ("f", "ac2g"):
            thread = streams.setdefault((event["pid"], event["tid"]), _DEVICE_THREADS + len(streams))
        elif phase in ("X", "i", "s", "f", "t") and event["pid"] == pid:
            thread = event["tid"]
        else:
            continue
        # In whole nanoseconds: Unix time in microseconds leaves a float a quarter of one, and slices would overlap.
        begin_ns = round(float(event["ts"]) * 1e3) + shift_ns
        place = {"pid": pid, "tid": thread, "ts": begin_ns / 1e3, "cat": f"torch,{category or ''}"}
        identity = {"id": flow_id(f"{pid}/{event['id']}")} if "id" in event else {}
        moved.append({**event, **place, **identity})
    # Of events that begin at once, first the slice that encloses the others, last the flows that bind to it.
    moved.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    names = {thread: f"device {device} stream {stream}" for (device, stream), thread in streams.items()}
    return [*(thread_name(pid, thread, name) for thread, name in names.items()), *moved]
