"""The worker of a stage process: its control endpoint, its relays and its stages, and what it does with each message."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from omni_core.control.framing import Work
from omni_core.control.lanes import Lanes
from omni_core.control.network import Network
from omni_core.control.plane import ControlPlane
from omni_core.errors import PluginError, StageFailedError
from omni_core.processes.run_directory import restore_directory
from omni_core.processes.watch import MemoryWatch
from omni_core.protocol import messages, process_messages
from omni_core.protocol.specs import ProcessSpec
from omni_core.relay.table import Relays
from omni_core.relay.transfer import Transfer
from omni_core.services import PROFILES, RANKS, STAGE_PROCESS
from omni_core.stage.assembly import build_scheduler
from omni_core.stage.outbound import Outbound
from omni_core.stage.stage import Stage
from omni_core.stage.thread import StageThread

logger = logging.getLogger(__name__)

_READ_ON_SECONDS = 0.02
"""Seconds that a dead peer's last messages may take from the sockets of this process to its stages."""

LAST_STEP_SECONDS = 1.0
"""Seconds that the end of a process waits for running steps. No process reads their results any more."""


class Worker:
    """Runs the stages of one :class:`ProcessSpec` on the current event loop.

    Args:
        network: the way to processes on other machines, if there may be any. Closed with the worker.
    """

    def __init__(self, spec: ProcessSpec, network: Network | None = None) -> None:
        self.spec = spec
        self.stopped = asyncio.Event()
        self.exit_code = 0
        self._loop = asyncio.get_running_loop()
        self._relays = Relays(spec.relays, spec.relay_towards, spec.spare_relays)
        self._control = ControlPlane(
            spec.endpoint,
            self._on_message,
            spec.addresses,
            network,
            self._on_cut,
            self._ask_in_flight,
            self._on_nonsense,
        )
        for endpoint, address in spec.addresses.items():
            self._relays.place(endpoint, self._relay_towards(endpoint, address))
        self._transfer = Transfer(self._control, self._relays, spec.same_gpu, spec.inline_bytes)
        self._outbound = Outbound(spec, self._control, self._transfer, self._relays)
        self._reads: Lanes[tuple[str, str]] = Lanes(self._read_failed, self._outbound.lock)
        self._stages = self._outbound.local
        self._followers: dict[str, StageThread] = {}
        self._ranks: dict[str, Any] = {}
        self._memory = MemoryWatch()
        self._outbound.on_failure = self._check_memory
        self._profile: Any = None
        self._handlers: dict[type, Callable[[Any], object]] = {
            messages.DataReadyMessage: self._on_data,
            messages.SubmitMessage: self._on_data,
            messages.AbortMessage: lambda message: self._abort(message.request_id),
            messages.FlowMessage: self._on_flow,
            messages.WaitingRequest: self._on_waiting,
            messages.StatisticsRequest: lambda _: self.tell_coordinator(
                messages.StageStatistics(spec.name, self._statistics())
            ),
            messages.FlushRequest: self._on_flush,
            process_messages.PingMessage: lambda _: self.tell_coordinator(
                process_messages.PongMessage(spec.name, self._running_computes())
            ),
            messages.ProfileMessage: self._on_profile,
            process_messages.PeerDownMessage: self._on_peer_down,
            process_messages.PeerUpMessage: self._on_peer_up,
            process_messages.PeerFailedMessage: self._on_peer_failed,
            process_messages.PeerJoinedMessage: spec.add_peer,
            process_messages.ListenAgainMessage: lambda _: self._listen_again(),
            process_messages.PeerLeftMessage: lambda message: self._on_peer_left(message.endpoint),
            process_messages.InFlightReport: lambda message: self._control.keep(message.requests),
            process_messages.ShutdownMessage: lambda _: self.stopped.set(),
        }

    def build(self, on_stage: Callable[[str], None]) -> None:
        """Build every stage; ``on_stage`` is called with each one's name before its factory runs.

        Raises:
            RelayError: a relay cannot work here. Exception: a stage cannot be built.
        """
        has_gpu = any(stage.gpu is not None for stage in self.spec.stages)
        if not has_gpu:
            self._relays.open()
        for stage in self.spec.stages:
            on_stage(stage.name)
            scheduler = build_scheduler(stage)
            if self.spec.rank > 0:
                send = partial(self._control.send, self.spec.stage_endpoints[stage.name][stage.injected["replica"]])
                ranks = RANKS.needed("ranks need", self.spec.services)
                follower = ranks.follower(stage, scheduler, self.spec.rank, send, self._scheduler_died)
                self._followers[stage.name] = self._ranks[stage.name] = follower
                continue
            abort = scheduler.abort
            if self.spec.followers:
                count = 1 + len(self.spec.followers)
                ranks = RANKS.needed("ranks need", self.spec.services)
                leader = ranks.leader(stage.name, scheduler, count, self._publish, self._scheduler_died)
                self._ranks[stage.name], abort = leader, leader.abort
            self._stages[stage.name] = Stage(stage, scheduler, self._outbound, self._scheduler_died, abort)
        if has_gpu:  # not before: a transport must find the device as the stages have set it up
            self._relays.open()
        for rank in self._ranks.values():
            self._handlers |= dict.fromkeys(rank.takes, lambda message: self._ranks[message.stage].take(message))

    def start(self) -> None:
        """Begin to compute and to read messages, and report that to the coordinator."""
        for part in self.parts().values():
            part.start()
        self._control.listen()
        self.tell_coordinator(process_messages.ReadyMessage(self.spec.name, os.getpid()))

    def _publish(self, message: Any) -> None:
        """Send a message of rank 0 to the other ranks. From any thread."""
        for endpoint in self.spec.followers:
            self._control.send(endpoint, message)

    def _ask_in_flight(self) -> None:
        self.tell_coordinator(process_messages.InFlightRequest(self.spec.endpoint))

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
        elif (
            "CUDA" in error.message
            and (process := STAGE_PROCESS.given(self.spec.services)) is not None
            and process.gpu_is_broken()
        ):
            logger.error("the GPU fails every call of this process since %s: this process ends", error.message)
            self._scheduler_died()

    def close(self) -> None:
        """Stop every scheduler, then give back the relay's memory and the sockets."""
        for part in self.parts().values():
            part.stop()
        deadline = time.monotonic() + LAST_STEP_SECONDS
        for part in self.parts().values():
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

    def _on_flow(self, message: messages.FlowMessage) -> None:
        for stage in self._stages.values():
            stage.flow(message.attempt, message.target, paused=message.paused)

    def _on_waiting(self, message: messages.WaitingRequest) -> None:
        waits = {name: stage.waiting(message.attempt) for name, stage in self._stages.items()}
        found = {name: " and ".join(each) for name, each in waits.items() if each}
        self.tell_coordinator(messages.WaitingReport(message.attempt, found))

    def _on_flush(self, _: messages.FlushRequest) -> None:
        # Not of ranks above 0: what a flush changes must have a place in the order of the inbox, which they replay.
        flushed = [name for name, stage in self._stages.items() if stage.flush_caches()]
        self.tell_coordinator(messages.FlushReport(self.spec.name, flushed))

    def _on_peer_down(self, message: process_messages.PeerDownMessage) -> None:
        asked = set(message.requests)
        reached = [work for work in self._control.peer_is_down(message.endpoint) if work[0] in asked]
        # Not at once: what the process had sent before its death may lie unread in our sockets.
        asyncio.get_running_loop().call_later(_READ_ON_SECONDS, self._report, message, reached)

    def _report(self, message: process_messages.PeerDownMessage, reached: list[Work]) -> None:
        arrived = [
            (request, source, name, *what)
            for request in message.requests
            for name, stage in self._stages.items()
            for source, what in stage.arrivals(request).items()
            if source in message.stages
        ]
        self.tell_coordinator(process_messages.PeerDownReport(message.death, self.spec.name, reached, arrived))

    def _on_cut(self, endpoint: str, reason: str) -> None:
        """The connection to a process on another machine has ended. If that process is alive, it must be replaced; so must this one, if
        it cannot say so.
        """
        if endpoint == self.spec.coordinator_endpoint:
            logger.error("the connection to the runner has ended: %s", reason)
            self._scheduler_died()
        else:
            self.tell_coordinator(process_messages.PeerCutReport(endpoint, reason, self.spec.name, os.getpid()))

    def _on_nonsense(self, pid: int, reason: str) -> None:
        if pid == os.getppid():
            logger.error("the runner has sent %s: this process ends, as its messages cannot be read any more", reason)
            self._scheduler_died()
        else:
            self.tell_coordinator(process_messages.NonsenseReport(self.spec.name, pid, reason))

    def _listen_again(self) -> None:
        address = self.spec.addresses.get(self.spec.endpoint, self.spec.endpoint)
        restore_directory(os.path.dirname(address.removeprefix("ipc://")))
        self._control.renew()

    def _on_peer_up(self, message: process_messages.PeerUpMessage) -> None:
        if message.address:
            self._relays.place(message.endpoint, self._relay_towards(message.endpoint, message.address))
        self._control.peer_is_up(message.endpoint, message.address)

    def _relay_towards(self, endpoint: str, address: str) -> str | None:
        """The name of the relay that reaches a peer at an address, if payloads go there. Machines are told apart by the runner, which
        gives Unix-domain addresses to processes of one machine.
        """
        near = address.startswith("ipc://")
        return (self.spec.relay_towards if near else self.spec.relay_across).get(endpoint)

    def _on_peer_failed(self, message: process_messages.PeerFailedMessage) -> None:
        error = StageFailedError(message.stages[0], message.reason)
        for request_id, stage in self._control.peer_has_failed(message.endpoint, error):
            info = messages.ErrorInfo(stage, type(error).__name__, str(error))
            self.tell_coordinator(messages.CompleteMessage(request_id, stage, None, info))

    def _on_peer_left(self, endpoint: str) -> None:
        for request_id, _ in self._control.peer_is_down(endpoint):  # it is over, but may have left payloads unread
            self._relays.cleanup(request_id)
        self.spec.drop_peer(endpoint)
        self._relays.place(endpoint, None)
        self._control.drop(endpoint)

    def _on_profile(self, message: messages.ProfileMessage) -> None:
        if self._profile is None:
            try:
                self._profile = PROFILES.needed("profiles need", self.spec.services).process(
                    self.spec, self._outbound, self.parts
                )
            except PluginError as error:
                self.tell_coordinator(messages.ProfileReport(self.spec.name, problem=str(error)))
                return
        self._profile.handle(message)

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
            if not message.is_open and "" in stage.spec.stream_from:  # the whole input has come with the request
                stage.receive_done(message.request_id, "")
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
            source, chunk_id = message.from_stage or "client", message.chunk_id
        flow = (source, message.stage, chunk_id)
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

    def parts(self) -> dict[str, StageThread]:
        """Return the threads of the stages of this process, by stage."""
        return {**self._stages, **self._followers}

    def _running_computes(self) -> list[process_messages.RunningCompute]:
        now = time.monotonic()
        return [
            process_messages.RunningCompute(name, request_id, now - since)
            for name, part in self.parts().items()
            for request_id, since in part.running_computes().items()
        ]

    def _statistics(self) -> dict[str, dict[str, float]]:
        """Return the counters of every stage, and of the relays under ``"relay"``."""
        counters = {name: part.statistics() for name, part in self.parts().items()}
        if self.spec.relays:
            counters["relay"] = self._relays.statistics()
        return counters
