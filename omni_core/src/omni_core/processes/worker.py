"""A process of the pipeline: one control endpoint, its relays, and the stages that live here."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from omni_core.control.lanes import Lanes, Later
from omni_core.control.peer import Work
from omni_core.control.plane import Abroad, ControlPlane
from omni_core.errors import StageFailedError, TransportError
from omni_core.observe.profiler import Recorder, TorchRecorder, flow_of, write_events
from omni_core.processes.watch import ComputeWatch, MemoryWatch
from omni_core.protocol import lazy_torch
from omni_core.protocol.codec import decode, encode_whole
from omni_core.protocol.messages import (
    AbortMessage,
    CompleteMessage,
    DataReadyMessage,
    ErrorInfo,
    OmniRequest,
    PeerDownMessage,
    PeerDownReport,
    PeerFailedMessage,
    PeerUpMessage,
    PingMessage,
    PongMessage,
    ProfileMessage,
    ProfileReport,
    ReadyMessage,
    ShutdownMessage,
    StageSpan,
    StageStatistics,
    StatisticsRequest,
    StreamMessage,
    SubmitMessage,
)
from omni_core.protocol.specs import ProcessSpec
from omni_core.relay.table import Relays
from omni_core.relay.transfer import Transfer
from omni_core.stage.assembly import build_scheduler
from omni_core.stage.ranks import Follower, ItemMessage, Leader, RankError, WorkMessage
from omni_core.stage.stage import Stage

logger = logging.getLogger(__name__)

_READ_ON_SECONDS = 0.02
"""After a peer's death, how long its last messages may take from our sockets to our stages."""

LAST_STEP_SECONDS = 1.0
"""How long the end of a process waits for running steps. Their results have no reader any more."""


class Worker:
    """Runs the stages of one :class:`ProcessSpec` on the current event loop and is their way to everybody else.

    Args:
        abroad: its way to processes on other hosts, where there are any. Closed with it.
    """

    def __init__(self, spec: ProcessSpec, abroad: Abroad | None = None) -> None:
        self.spec = spec
        self.stopped = asyncio.Event()
        self.lock = threading.RLock()
        self.exit_code = 0
        self._loop = asyncio.get_running_loop()
        self._stages: dict[str, Stage] = {}
        self._followers: dict[str, Follower] = {}
        self._leaders: dict[str, Leader] = {}
        self.recorder: Recorder | None = None
        self._torch_recorder: TorchRecorder | None = None
        self._writing: set[asyncio.Future[None]] = set()
        self._relays = Relays(spec.relays, spec.relay_towards)
        self._control = ControlPlane(spec.endpoint, self._on_message, abroad)
        self._transfer = Transfer(self._control, self._relays, spec.same_gpu)
        self._reads: Lanes[tuple[str, str]] = Lanes(self._read_failed, self.lock)
        self._computes = ComputeWatch()
        self._memory = MemoryWatch()

    def _endpoint(self, stage: str, request: OmniRequest | None) -> str:
        """The process that serves ``request`` in ``stage``."""
        replicas = self.spec.stage_endpoints[stage]
        return replicas[0] if request is None or len(replicas) == 1 else replicas[request.placement[stage]]

    def build(self, on_stage: Callable[[str], None]) -> None:
        """Build every stage; ``on_stage`` is told each one's name before its factory runs."""
        for stage in self.spec.stages:
            on_stage(stage.name)
            scheduler = build_scheduler(stage)
            self._computes.add(stage, scheduler)
            if self.spec.rank > 0:
                on_error = partial(self._rank_error, stage.name)
                self._followers[stage.name] = Follower(stage.name, scheduler, on_error, self.scheduler_died)
            elif self.spec.followers:
                ranks = 1 + len(self.spec.followers)
                leader = Leader(stage.name, scheduler, ranks, self._publish, self.scheduler_died)
                self._leaders[stage.name] = leader
                self._stages[stage.name] = Stage(stage, scheduler, self, leader.inbox.request_abort)
            else:
                self._stages[stage.name] = Stage(stage, scheduler, self)

    def start(self) -> None:
        """Compute, read messages, and say so."""
        for part in self._parts().values():
            part.start()
        self._control.listen()
        self.tell_coordinator(ReadyMessage(self.spec.name, os.getpid(), [stage.name for stage in self.spec.stages]))

    def _publish(self, message: ItemMessage | WorkMessage) -> None:
        """Send a message of rank 0 to the other ranks. From any thread."""
        for endpoint in self.spec.followers:
            self._control.send(endpoint, message)

    def _rank_error(self, stage: str, request_id: str, error: str) -> None:
        """Tell rank 0 of a request that has failed on this rank. Called in the scheduler's thread."""
        leaders = self.spec.stage_endpoints[stage]
        self._control.send(
            leaders[self.spec.stages[0].injected["replica"]], RankError(stage, self.spec.rank, request_id, error)
        )

    def tell_coordinator(self, message: Any) -> None:
        self._control.send(self.spec.coordinator_endpoint, message)

    def close(self) -> None:
        """Stop every scheduler, then give back the relay's memory and the sockets."""
        for part in self._parts().values():
            part.stop()
        deadline = time.monotonic() + LAST_STEP_SECONDS
        for part in self._parts().values():
            part.join(max(deadline - time.monotonic(), 0.0))
        self._relays.close()
        self._control.close()

    # --- in ----------------------------------------------------------------------------------------------------------
    def _on_message(self, message: Any) -> None:
        if isinstance(message, DataReadyMessage):
            self._on_data(message)
        elif isinstance(message, SubmitMessage):
            self._on_submit(message)
        elif isinstance(message, AbortMessage):
            self.abort(message.request_id)
        elif isinstance(message, StatisticsRequest):
            self.tell_coordinator(StageStatistics(self.spec.name, self.statistics()))
        elif isinstance(message, ItemMessage | WorkMessage):
            self._followers[message.stage].feed(message)
        elif isinstance(message, RankError):
            self._leaders[message.stage].take(message)
        elif isinstance(message, PingMessage):
            self.tell_coordinator(PongMessage(self.spec.name, self._computes.computes()))
        elif isinstance(message, ProfileMessage):
            self._on_profile(message)
        elif isinstance(message, PeerDownMessage):
            self._on_peer_down(message)
        elif isinstance(message, PeerUpMessage):
            self._control.peer_is_up(message.endpoint)
        elif isinstance(message, PeerFailedMessage):
            self._on_peer_failed(message)
        elif isinstance(message, ShutdownMessage):
            self.stopped.set()
        else:
            logger.error("process %r cannot handle a %s", self.spec.name, type(message).__name__)

    def _on_peer_down(self, message: PeerDownMessage) -> None:
        asked = set(message.requests)
        reached = [work for work in self._control.peer_is_down(message.endpoint) if work[0] in asked]
        # Not at once: what the dead process had sent before may lie unread in our sockets.
        asyncio.get_running_loop().call_later(_READ_ON_SECONDS, self._report, message, reached)

    def _report(self, message: PeerDownMessage, reached: list[Work]) -> None:
        arrived = [
            (request, source, name, *what)
            for request in message.requests
            for name, stage in self._stages.items()
            for source, what in stage.arrivals(request).items()
            if source in message.stages
        ]
        self.tell_coordinator(PeerDownReport(message.death, self.spec.name, reached, arrived))

    def _on_peer_failed(self, message: PeerFailedMessage) -> None:
        error = StageFailedError(message.stages[0], message.reason)
        for request_id, stage in self._control.peer_has_failed(message.endpoint, error):
            info = ErrorInfo(stage, type(error).__name__, str(error))
            self.tell_coordinator(CompleteMessage(request_id, stage, None, info))

    # --- profiling -----------------------------------------------------------------------------------------------------
    def _on_profile(self, message: ProfileMessage) -> None:
        if message.start:
            self._begin_profile(message.torch)
        elif self.recorder is not None:
            recorder, self.recorder = self.recorder, None
            for part in self._parts().values():
                part.profile(None)
            torch, self._torch_recorder = self._torch_recorder, None
            writing = asyncio.ensure_future(asyncio.to_thread(self._write_profile, recorder, torch, Path(message.path)))
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)

    def _begin_profile(self, torch_stages: list[str]) -> None:
        self.recorder = Recorder(self.spec.name)
        for part in self._parts().values():
            part.profile(self.recorder)
        problem = ""
        if not {stage.name for stage in self.spec.stages}.isdisjoint(torch_stages):
            try:
                self._torch_recorder = TorchRecorder()
            except Exception as error:
                problem = f"torch's profiler did not start: {type(error).__name__}: {error}"
        self.tell_coordinator(ProfileReport(self.spec.name, problem=problem))

    def _write_profile(self, recorder: Recorder, torch: TorchRecorder | None, path: Path) -> None:
        """In a thread: it takes as long as there is to write."""
        problem = ""
        try:
            events = recorder.finish()
            if torch is not None:
                events += torch.finish(path.with_suffix(".torch.json"))
            write_events(path, events)
        except Exception as error:
            problem = f"the profile could not be written: {type(error).__name__}: {error}"
        self.tell_coordinator(ProfileReport(self.spec.name, str(path), recorder.dropped, problem))

    def _on_submit(self, message: SubmitMessage) -> None:
        stage = self._stages[message.stage]
        try:
            self._reads.run((message.request_id, message.stage), lambda: self._begin(stage, message))
        except Exception as error:
            stage.receive_failure(message.request_id, error)

    def _begin(self, stage: Stage, message: SubmitMessage) -> Later | None:
        if message.has_tensors and not lazy_torch.is_here():
            return partial(self._begin_later, stage, message)
        begin = time.monotonic_ns()
        payload = decode(message.body)
        self._record_receipt(begin, message.request_id, "client", message.stage, None)
        stage.receive_payload(payload, None)
        return None

    async def _begin_later(self, stage: Stage, message: SubmitMessage) -> None:
        await lazy_torch.bring()
        self._begin(stage, message)

    def _record_receipt(self, begin: int, request_id: str, source: str, target: str, chunk_id: int | None) -> None:
        if self.recorder is not None:
            flow = flow_of(request_id, source, target, chunk_id)
            self.recorder.slice(f"receive from {source}", begin, request_id, flow, starts=False)

    def _on_data(self, message: DataReadyMessage) -> None:
        stage = self._stages[message.stage]
        try:
            self._reads.run((message.request_id, message.stage), lambda: self._deliver(stage, message))
        except Exception as error:
            stage.receive_failure(message.request_id, error)

    def _deliver(self, stage: Stage, message: DataReadyMessage) -> Later | None:
        if message.is_done:
            stage.receive_done(message.request_id, message.from_stage, message.handed_to)
            return None
        if self._transfer.reads_at_once(message):
            begin = time.monotonic_ns()
            self._hand_over(stage, message, self._transfer.read(message), begin)
            return None
        return partial(self._deliver_later, stage, message)

    async def _deliver_later(self, stage: Stage, message: DataReadyMessage) -> None:
        value = await self._transfer.read_later(message)
        self._hand_over(stage, message, value, time.monotonic_ns())

    def _hand_over(self, stage: Stage, message: DataReadyMessage, value: Any, begin: int) -> None:
        self._record_receipt(begin, message.request_id, message.from_stage, message.stage, message.chunk_id)
        if message.is_stream:
            stage.receive_chunk(message.request_id, message.from_stage, value)
        else:
            stage.receive_payload(value, message.from_stage, message.handed_to)

    def _read_failed(self, lane: tuple[str, str], error: BaseException) -> None:
        request_id, stage = lane
        self._stages[stage].receive_failure(request_id, error)

    def abort(self, request_id: str) -> None:
        for name, stage in self._stages.items():
            self._reads.cancel((request_id, name))
            stage.abort(request_id)
        self._control.forget(request_id)
        self.release(request_id)

    def _parts(self) -> dict[str, Stage | Follower]:
        return {**self._stages, **self._followers}

    def statistics(self) -> dict[str, dict[str, float]]:
        counters = {name: part.statistics() for name, part in self._parts().items()}
        if self.spec.relays:
            counters["relay"] = self._relays.statistics()
        return counters

    # --- out (what a stage asks of its process) ------------------------------------------------------------------------
    def span(self, request_id: str, stage: str, seconds: float, error: str) -> None:
        now = time.time_ns()
        self.tell_coordinator(StageSpan(request_id, stage, now - int(seconds * 1e9), now, error))

    def scheduler_died(self) -> None:
        """End the process: a stage without its scheduler's loop answers nobody, and a new process has a new one."""
        self.exit_code = 1
        self._loop.call_soon_threadsafe(self.stopped.set)

    def send(self, target: str, value: Any, request: OmniRequest | None, **message: Any) -> tuple[int, Later | None]:
        return self._transfer.send(self._endpoint(target, request), value, **message)

    def signal(self, message: DataReadyMessage, request: OmniRequest | None) -> None:
        endpoint = self._endpoint(message.stage, request)
        self._control.send(endpoint, message, (message.request_id, message.stage))

    def local(self, target: str) -> Stage | None:
        return self._stages.get(target)

    def complete(self, request_id: str, stage: str, data: Any, error: ErrorInfo | None) -> None:
        begin = time.monotonic_ns()
        body, has_tensors = (None, False) if error is not None else encode_whole(data)
        try:
            self.tell_coordinator(CompleteMessage(request_id, stage, body, error, has_tensors))
            self._record_result(begin, request_id, stage, None)
        except TransportError:
            logger.exception("the coordinator does not read; the end of request %s is lost", request_id)
        if error is not None and self._memory.must_end(error.error_type, self._completed):
            logger.error("MemoryError for several requests in a row, and no memory to be had: this process ends")
            self.scheduler_died()

    def _completed(self) -> float:
        return sum(stage.statistics()["completed"] for stage in self._stages.values())

    def stream_to_client(self, request_id: str, stage: str, chunk_id: int, data: Any) -> None:
        begin = time.monotonic_ns()
        body, has_tensors = encode_whole(data)
        self.tell_coordinator(StreamMessage(request_id, stage, chunk_id, body, has_tensors))
        self._record_result(begin, request_id, stage, chunk_id)

    def _record_result(self, begin: int, request_id: str, stage: str, chunk_id: int | None) -> None:
        if self.recorder is not None:
            flow = flow_of(request_id, stage, "client", chunk_id)
            self.recorder.slice("send to client", begin, request_id, flow, starts=True)

    def release(self, request_id: str) -> None:
        self._relays.cleanup(request_id)
