"""The worker of a stage process: its control endpoint, its relays and its stages, and what it does with each message."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from omni_core.control.framing import Work
from omni_core.control.lanes import Lanes, Tasks
from omni_core.control.plane import ControlPlane, RemoteRoutes
from omni_core.errors import StageFailedError
from omni_core.observe.profiler import DeviceRecorder, Recorder, flow_of
from omni_core.processes.watch import ComputeWatch, MemoryWatch
from omni_core.protocol import messages
from omni_core.protocol.specs import ProcessSpec
from omni_core.references import load
from omni_core.relay.table import Relays
from omni_core.relay.transfer import Transfer
from omni_core.stage.assembly import build_scheduler
from omni_core.stage.outbound import Outbound
from omni_core.stage.ranks import Follower, ItemMessage, Leader, RankError, WorkMessage
from omni_core.stage.stage import Stage

logger = logging.getLogger(__name__)

_READ_ON_SECONDS = 0.02
"""Seconds that a dead peer's last messages may take from the sockets of this process to its stages."""

TORCH_RECORDER = "omni_torch.profiler:TorchRecorder"
"""The :class:`DeviceRecorder` of processes that compute with torch."""

LAST_STEP_SECONDS = 1.0
"""Seconds that the end of a process waits for running steps. No process reads their results any more."""


class Worker:
    """Runs the stages of one :class:`ProcessSpec` on the current event loop.

    Args:
        remote: the routes to processes on other machines, if there are any. Closed with the worker.
    """

    def __init__(self, spec: ProcessSpec, remote: RemoteRoutes | None = None) -> None:
        self.spec = spec
        self.stopped = asyncio.Event()
        self.exit_code = 0
        self._loop = asyncio.get_running_loop()
        self._relays = Relays(spec.relays, spec.relay_towards)
        self._control = ControlPlane(spec.endpoint, self._on_message, remote, self._ask_in_flight)
        self._transfer = Transfer(self._control, self._relays, spec.same_gpu, spec.inline_bytes)
        self._outbound = Outbound(spec, self._control, self._transfer, self._relays)
        self._reads: Lanes[tuple[str, str]] = Lanes(self._read_failed, self._outbound.lock)
        self._stages = self._outbound.local
        self._followers: dict[str, Follower] = {}
        self._leaders: dict[str, Leader] = {}
        self._computes = ComputeWatch()
        self._memory = MemoryWatch()
        self._outbound.on_failure = self._check_memory
        self._torch_recorder: DeviceRecorder | None = None
        self._writing = Tasks()
        self._handlers: dict[type, Callable[[Any], object]] = {
            messages.DataReadyMessage: self._on_data,
            messages.SubmitMessage: self._on_data,
            messages.AbortMessage: lambda message: self._abort(message.request_id),
            messages.WaitingRequest: self._on_waiting,
            messages.StatisticsRequest: lambda _: self.tell_coordinator(
                messages.StageStatistics(spec.name, self._statistics())
            ),
            ItemMessage: lambda message: self._followers[message.stage].feed(message),
            WorkMessage: lambda message: self._followers[message.stage].feed(message),
            RankError: lambda message: self._leaders[message.stage].take(message),
            messages.PingMessage: lambda _: self.tell_coordinator(
                messages.PongMessage(spec.name, self._computes.computes())
            ),
            messages.ProfileMessage: self._on_profile,
            messages.PeerDownMessage: self._on_peer_down,
            messages.PeerUpMessage: lambda message: self._control.peer_is_up(message.endpoint),
            messages.PeerFailedMessage: self._on_peer_failed,
            messages.InFlightReport: lambda message: self._control.keep(message.requests),
            messages.ShutdownMessage: lambda _: self.stopped.set(),
        }

    def build(self, on_stage: Callable[[str], None]) -> None:
        """Build every stage; ``on_stage`` is called with each one's name before its factory runs."""
        for stage in self.spec.stages:
            on_stage(stage.name)
            scheduler = build_scheduler(stage)
            self._computes.add(stage, scheduler)
            if self.spec.rank > 0:
                on_error = partial(self._rank_error, stage.name)
                self._followers[stage.name] = Follower(stage, scheduler, on_error, self._scheduler_died)
                continue
            abort = scheduler.abort
            if self.spec.followers:
                ranks = 1 + len(self.spec.followers)
                leader = Leader(stage.name, scheduler, ranks, self._publish, self._scheduler_died)
                self._leaders[stage.name], abort = leader, leader.inbox.request_abort
            self._stages[stage.name] = Stage(stage, scheduler, self._outbound, self._scheduler_died, abort)

    def start(self) -> None:
        """Begin to compute and to read messages, and report that to the coordinator."""
        for part in self._parts().values():
            part.start()
        self._control.listen()
        self.tell_coordinator(messages.ReadyMessage(self.spec.name, os.getpid()))

    def _publish(self, message: ItemMessage | WorkMessage) -> None:
        """Send a message of rank 0 to the other ranks. From any thread."""
        for endpoint in self.spec.followers:
            self._control.send(endpoint, message)

    def _rank_error(self, stage: str, request_id: str, error: str) -> None:
        """Tell rank 0 of a request that has failed on this rank. Called in the scheduler's thread."""
        leader = self.spec.stage_endpoints[stage][self.spec.stages[0].injected["replica"]]
        self._control.send(leader, RankError(stage, self.spec.rank, request_id, error))

    def _ask_in_flight(self) -> None:
        self.tell_coordinator(messages.InFlightRequest(self.spec.endpoint))

    def tell_coordinator(self, message: Any) -> None:
        """Send a control message to the coordinator. From any thread."""
        self._outbound.tell_coordinator(message)

    def _scheduler_died(self) -> None:
        """End the process, so that a new one with a new scheduler takes its place. From any thread."""
        self.exit_code = 1
        self._loop.call_soon_threadsafe(self.stopped.set)

    def _check_memory(self, error: messages.ErrorInfo) -> None:
        if self._memory.must_end(error.error_type, lambda: sum(each.completed for each in self._stages.values())):
            logger.error("MemoryError for several requests in a row, and no memory to be had: this process ends")
            self._scheduler_died()

    def close(self) -> None:
        """Stop every scheduler, then give back the relay's memory and the sockets."""
        for part in self._parts().values():
            part.stop()
        deadline = time.monotonic() + LAST_STEP_SECONDS
        for part in self._parts().values():
            part.join(max(deadline - time.monotonic(), 0.0))
        self._relays.close()
        self._control.close()

    def _on_message(self, message: Any) -> None:
        handle = self._handlers.get(type(message))
        if handle is None:
            logger.error("process %r cannot handle a %s", self.spec.name, type(message).__name__)
        else:
            handle(message)

    def _on_data(self, message: messages.DataReadyMessage | messages.SubmitMessage) -> None:
        self._reads.run((message.request_id, message.stage), partial(self._deliver, message))

    def _on_waiting(self, message: messages.WaitingRequest) -> None:
        waits = {name: stage.waiting(message.attempt) for name, stage in self._stages.items()}
        found = {name: " and ".join(each) for name, each in waits.items() if each}
        self.tell_coordinator(messages.WaitingReport(message.attempt, found))

    def _on_peer_down(self, message: messages.PeerDownMessage) -> None:
        asked = set(message.requests)
        reached = [work for work in self._control.peer_is_down(message.endpoint) if work[0] in asked]
        # Not at once: what the process had sent before its death may lie unread in our sockets.
        asyncio.get_running_loop().call_later(_READ_ON_SECONDS, self._report, message, reached)

    def _report(self, message: messages.PeerDownMessage, reached: list[Work]) -> None:
        arrived = [
            (request, source, name, *what)
            for request in message.requests
            for name, stage in self._stages.items()
            for source, what in stage.arrivals(request).items()
            if source in message.stages
        ]
        self.tell_coordinator(messages.PeerDownReport(message.death, self.spec.name, reached, arrived))

    def _on_peer_failed(self, message: messages.PeerFailedMessage) -> None:
        error = StageFailedError(message.stages[0], message.reason)
        for request_id, stage in self._control.peer_has_failed(message.endpoint, error):
            info = messages.ErrorInfo(stage, type(error).__name__, str(error))
            self.tell_coordinator(messages.CompleteMessage(request_id, stage, None, info))

    def _on_profile(self, message: messages.ProfileMessage) -> None:
        if message.start:
            self._begin_profile(message.torch)
        elif self._outbound.recorder is not None:
            recorder, self._outbound.recorder = self._outbound.recorder, None
            for part in self._parts().values():
                part.profile(None)
            torch, self._torch_recorder = self._torch_recorder, None
            self._writing.start(asyncio.to_thread(self._write_profile, recorder, torch, Path(message.path)))

    def _begin_profile(self, torch_stages: list[str]) -> None:
        self._outbound.recorder = Recorder(self.spec.name)
        for part in self._parts().values():
            part.profile(self._outbound.recorder)
        problem = ""
        if not {stage.name for stage in self.spec.stages}.isdisjoint(torch_stages):
            try:
                self._torch_recorder = load(TORCH_RECORDER)()
            except Exception as error:
                problem = f"torch's profiler did not start: {type(error).__name__}: {error}"
        self.tell_coordinator(messages.ProfileReport(self.spec.name, problem=problem))

    def _write_profile(self, recorder: Recorder, torch: DeviceRecorder | None, path: Path) -> None:
        """Write what was recorded. Called in a thread, because it may take seconds."""
        problem = ""
        try:
            events = recorder.finish()
            if torch is not None:
                events += torch.finish(path.with_suffix(".torch.json"))
            path.write_text(json.dumps(events))
        except Exception as error:
            problem = f"the profile could not be written: {type(error).__name__}: {error}"
        self.tell_coordinator(messages.ProfileReport(self.spec.name, str(path), recorder.dropped, problem))

    async def _deliver(self, message: messages.DataReadyMessage | messages.SubmitMessage) -> None:
        """Read what a message carries and give it to its stage."""
        stage = self._stages[message.stage]
        begin = time.monotonic_ns()
        if isinstance(message, messages.DataReadyMessage) and message.is_done:
            stage.receive_done(message.request_id, message.from_stage, message.handed_to)
            return
        value = await self._transfer.read(message)
        if self._outbound.recorder is not None:
            self._record_receipt(begin, message)
        if isinstance(message, messages.SubmitMessage):
            stage.receive_payload(value, None)
        elif message.is_stream:
            stage.receive_chunk(message.request_id, message.from_stage, value)
        else:
            stage.receive_payload(value, message.from_stage, message.handed_to)

    def _record_receipt(self, begin: int, message: messages.DataReadyMessage | messages.SubmitMessage) -> None:
        assert self._outbound.recorder is not None
        if (message.request_id, message.stage) in self._reads:  # it waited, and the thread did other work meanwhile
            begin = time.monotonic_ns()
        source, chunk_id = "client", None
        if isinstance(message, messages.DataReadyMessage):
            source, chunk_id = message.from_stage, message.chunk_id
        flow = flow_of(message.request_id, source, message.stage, chunk_id)
        self._outbound.recorder.slice(f"receive from {source}", begin, message.request_id, flow, starts=False)

    def _read_failed(self, lane: tuple[str, str], error: BaseException) -> None:
        request_id, stage = lane
        self._stages[stage].receive_failure(request_id, error)

    def _abort(self, request_id: str) -> None:
        """Drop every state of a request, and cancel what is read and sent for it."""
        for name, stage in self._stages.items():
            self._reads.cancel((request_id, name))
            stage.abort(request_id)
        self._control.forget(request_id)
        self._relays.cleanup(request_id)

    def _parts(self) -> dict[str, Stage | Follower]:
        return {**self._stages, **self._followers}

    def _statistics(self) -> dict[str, dict[str, float]]:
        """Return the counters of every stage, and of the relays under ``"relay"``."""
        counters = {name: part.statistics() for name, part in self._parts().items()}
        if self.spec.relays:
            counters["relay"] = self._relays.statistics()
        return counters
