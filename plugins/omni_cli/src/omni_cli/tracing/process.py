"""The profile of a stage process: begins and ends at the runner's messages, and sends it what was recorded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from omni_cli.tracing.recorder import DeviceRecorder, Recorder
from omni_core.api import ProcessSpec, load
from omni_core.runtime_api import Outbound, ProfileMessage, ProfileReport, StageThread, Tasks

TORCH_RECORDER = "omni_cli.tracing.torch_profiler:TorchRecorder"
"""The :class:`DeviceRecorder` of processes that compute with torch."""


class ProcessProfile:
    """Records in one stage process while a profile is on. Called on its event loop.

    Args:
        outbound: records sends, and sends reports.
        parts: returns the threads of its stages, by stage.
    """

    def __init__(self, spec: ProcessSpec, outbound: Outbound, parts: Callable[[], Mapping[str, StageThread]]) -> None:
        self._spec, self._outbound, self._parts = spec, outbound, parts
        self._recorder: Recorder | None = None
        self._torch: DeviceRecorder | None = None
        self._writing = Tasks()

    def handle(self, message: ProfileMessage) -> None:
        """Begin to record, or stop and send what was recorded."""
        if message.start:
            self._begin(message.torch)
        elif self._recorder is not None:
            recorder, self._recorder, self._outbound.recorder = self._recorder, None, None
            for part in self._parts().values():
                part.profile(None)
            torch, self._torch = self._torch, None
            self._writing.start(asyncio.to_thread(self._send, recorder, torch))
        else:  # it was started while the others recorded; nobody must wait for it
            self._outbound.tell_coordinator(ProfileReport(self._spec.name))

    def _begin(self, torch_stages: list[str]) -> None:
        asked = time.monotonic_ns()
        self._recorder = self._outbound.recorder = Recorder(self._spec.name)
        for part in self._parts().values():
            part.profile(self._recorder)
        problem = ""
        if not {stage.name for stage in self._spec.stages}.isdisjoint(torch_stages):
            try:
                self._torch = load(TORCH_RECORDER)()
            except Exception as error:
                problem = f"torch's profiler did not start: {type(error).__name__}: {error}"
        clock = (asked, time.monotonic_ns())
        self._outbound.tell_coordinator(ProfileReport(self._spec.name, problem=problem, clock=clock))

    def _send(self, recorder: Recorder, torch: DeviceRecorder | None) -> None:
        """Send what was recorded. Called in a thread, because it may take seconds."""
        problem, data = "", b""
        try:
            events = recorder.finish()
            if torch is not None:
                own = self._spec.addresses.get(self._spec.endpoint, self._spec.endpoint)
                events += torch.finish(Path(own.removeprefix("ipc://")).with_suffix(".torch.json"))
            data = json.dumps(events).encode()
        except Exception as error:
            problem = f"the profile could not be read: {type(error).__name__}: {error}"
        self._outbound.tell_coordinator(ProfileReport(self._spec.name, data, recorder.dropped, problem))
