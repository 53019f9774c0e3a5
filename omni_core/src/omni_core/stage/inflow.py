"""Back-pressure on the streams into one stage: its sources wait while their chunks, or outputs made of them, wait here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from omni_core.control.back_pressure import MOST_CHUNK_BYTES, MOST_CHUNKS, Backlog
from omni_core.protocol.specs import StageSpec
from omni_core.scheduling.base import IncomingMessage
from omni_core.stage.active_requests import DONE, ActiveRequest, Requests
from omni_core.stage.outbound import Outbound


class Inflow:
    """The streams into one stage. A source that is a stage is told to wait and to go on; the client is told of every chunk taken.

    Args:
        is_full: returns whether too many outputs of a request wait.
    """

    def __init__(self, spec: StageSpec, requests: Requests, outbound: Outbound, is_full: Callable[[str], bool]) -> None:
        self._spec = spec
        self._requests = requests
        self._outbound = outbound
        self._is_full = is_full
        self._unread: Backlog[tuple[str, str]] = Backlog(MOST_CHUNKS, MOST_CHUNK_BYTES)
        self._loop = asyncio.get_running_loop()

    def add(self, request_id: str, source: str, nbytes: int) -> None:
        """Count a chunk that goes into the inbox; ``source`` is empty for the client."""
        if source and self._spec.stream_from and self._unread.add((request_id, source), nbytes):
            self.check_soon(request_id, source)

    def anew(self, active: ActiveRequest) -> None:
        """Count the chunks of a request from nothing again."""
        for source in self._spec.stream_from:
            self._unread.end((active.request_id, source))
            self.check_soon(active.request_id, source)

    def taken(self, messages: list[IncomingMessage]) -> None:
        """Count what the scheduler has taken from its inbox, in its thread."""
        of_inputs: dict[str, int] = {}
        for message in messages:
            if message.type == "stream_chunk" and message.source is None:
                of_inputs[message.request_id] = of_inputs.get(message.request_id, 0) + 1
            elif message.type == "stream_chunk":
                source = self._whole(message.source or "")
                if self._unread.take((message.request_id, source)):
                    self.check_soon(message.request_id, source)
        if of_inputs:
            with suppress(RuntimeError):  # the loop is closed: the process is ending
                self._loop.call_soon_threadsafe(self._inputs_were_taken, of_inputs)

    def _whole(self, source: str) -> str:
        """Return the name of a source, which the scheduler of a part may know by a shorter one."""
        longer = f"{self._spec.part}-{source}"
        return longer if longer in self._spec.stream_from else source

    def _inputs_were_taken(self, counts: dict[str, int]) -> None:
        """Take in that chunks of requests' inputs were taken. The input of a part comes from the client or from another part."""
        with self._outbound.lock:
            for request_id, count in counts.items():
                active = self._requests.get(request_id)
                if active is None:
                    continue
                if source := active.payload_from:
                    for _ in range(count):
                        if self._unread.take((request_id, source)):
                            self._check(request_id, source)
                    continue
                active.taken += count
                if active.taken and not self._waits(active):  # else when there is room again
                    self._outbound.input_taken(request_id, active.taken)
                    active.taken = 0

    def hold(self, request_id: str, held: bool) -> None:
        """Let the sources of a request wait, or go on, as its scheduler asks. From any thread."""
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(self._hold, request_id, held)

    def _hold(self, request_id: str, held: bool) -> None:
        active = self._requests.get(request_id)
        if active is not None:
            active.input_is_held = held
            for source in self._spec.stream_from:
                self.check_soon(request_id, source)

    def _waits(self, active: ActiveRequest) -> bool:
        return active.input_is_held or self._is_full(active.request_id)

    def check_soon(self, request_id: str, source: str) -> None:
        """Tell a source to wait or to go on, if that has changed. From any thread."""
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            if source:
                self._loop.call_soon_threadsafe(self._check, request_id, source)
            else:
                self._loop.call_soon_threadsafe(self._inputs_were_taken, {request_id: 0})

    def _check(self, request_id: str, source: str) -> None:
        with self._outbound.lock:
            active = self._requests.get(request_id)
            if active is None:
                return
            paused = self._unread.is_full((request_id, source)) or self._waits(active)
            if paused != (source in active.holds):
                (active.holds.add if paused else active.holds.discard)(source)
                self._outbound.flow(source, request_id, active.request, self._spec.name, paused=paused)

    def end(self, active: ActiveRequest) -> None:
        """A request has ended in this stage: let its sources go on."""
        for source in active.holds:
            self._outbound.flow(source, active.request_id, active.request, self._spec.name, paused=False)
        for source in self._spec.stream_from:
            self._unread.end((active.request_id, source))
        if "" in self._spec.stream_from and not active.error and not active.arrived.get("", (0, None))[0] & DONE:
            self._outbound.input_taken(active.request_id, 0, is_over=True)
