"""A process of the pipeline: one control endpoint, at most one relay, and the stages that live here."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from omni_core.errors import TransportError
from omni_core.protocol.codec import decode, encode
from omni_core.protocol.messages import (
    AbortMessage,
    CompleteMessage,
    DataReadyMessage,
    ErrorInfo,
    ReadyMessage,
    ShutdownMessage,
    StageStatistics,
    StatisticsRequest,
    StreamMessage,
    SubmitMessage,
)
from omni_core.references import load
from omni_core.runtime.building import build_scheduler
from omni_core.runtime.spec import ProcessSpec
from omni_core.runtime.stage import Stage
from omni_core.transport.control import ControlPlane
from omni_core.transport.lanes import Lanes
from omni_core.transport.relay import Relay, RelayOptions
from omni_core.transport.transfer import Transfer

logger = logging.getLogger(__name__)


class StageHost:
    """Runs the stages of one :class:`ProcessSpec` on the current event loop and is their way to everybody else."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.stopped = asyncio.Event()
        self._stages: dict[str, Stage] = {}
        self._relay: Relay | None = load(spec.relay)(RelayOptions(**spec.relay_options)) if spec.relay else None
        self._control = ControlPlane(spec.endpoint, self._on_message, spec.broadcast_endpoint)
        self._transfer = Transfer(self._control, self._relay)
        self._reads = Lanes(self._read_failed)

    def build(self, on_stage: Callable[[str], None]) -> None:
        """Build every stage; ``on_stage`` is told each one's name before its factory runs."""
        for stage in self.spec.stages:
            on_stage(stage.name)
            self._stages[stage.name] = Stage(stage, build_scheduler(stage), self)

    def start(self) -> None:
        for stage in self._stages.values():
            stage.start()
        self.tell_coordinator(ReadyMessage(self.spec.name, os.getpid(), list(self._stages)))

    def tell_coordinator(self, message: Any) -> None:
        self._control.send(self.spec.coordinator_endpoint, message)

    def close(self) -> None:
        """Stop every scheduler, then give back the relay's memory and the sockets."""
        for stage in self._stages.values():
            stage.stop()
        if self._relay is not None:
            self._relay.close()
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
        elif isinstance(message, ShutdownMessage):
            self.stopped.set()
        else:
            logger.error("process %r cannot handle a %s", self.spec.name, type(message).__name__)

    def _on_submit(self, message: SubmitMessage) -> None:
        stage = self._stages[message.stage]
        try:
            payload = decode(message.body)
        except Exception as error:
            stage.receive_failure(message.request_id, error)
        else:
            stage.receive_payload(payload, None)

    def _on_data(self, message: DataReadyMessage) -> None:
        stage = self._stages[message.stage]
        lane = f"{message.request_id}\0{message.stage}"
        try:
            self._reads.run(lane, lambda: self._deliver(stage, message))
        except Exception as error:
            stage.receive_failure(message.request_id, error)

    def _deliver(self, stage: Stage, message: DataReadyMessage) -> Awaitable[None] | None:
        if message.is_done:
            stage.receive_done(message.request_id, message.from_stage)
            return None
        if self._transfer.reads_at_once(message):
            self._hand_over(stage, message, self._transfer.read(message))
            return None
        return self._deliver_later(stage, message)

    async def _deliver_later(self, stage: Stage, message: DataReadyMessage) -> None:
        self._hand_over(stage, message, await self._transfer.read_later(message))

    def _hand_over(self, stage: Stage, message: DataReadyMessage, value: Any) -> None:
        if message.is_stream:
            stage.receive_chunk(message.request_id, message.from_stage, value)
        else:
            stage.receive_payload(value, message.from_stage)

    def _read_failed(self, lane: str, error: BaseException) -> None:
        request_id, _, stage = lane.partition("\0")
        self._stages[stage].receive_failure(request_id, error)

    def abort(self, request_id: str) -> None:
        for name, stage in self._stages.items():
            self._reads.cancel(f"{request_id}\0{name}")
            stage.abort(request_id)
        self.release(request_id)

    def statistics(self) -> dict[str, dict[str, float]]:
        counters = {name: stage.statistics() for name, stage in self._stages.items()}
        if self._relay is not None:
            counters["relay"] = self._relay.statistics()
        return counters

    # --- out (what a stage asks of its process) ------------------------------------------------------------------------
    def send(self, target: str, value: Any, **message: Any) -> Awaitable[None] | None:
        return self._transfer.send(self.spec.stage_endpoints[target], value, **message)

    def signal(self, message: DataReadyMessage) -> None:
        self._control.send(self.spec.stage_endpoints[message.stage], message)

    def local(self, target: str) -> Stage | None:
        return self._stages.get(target)

    def complete(self, request_id: str, stage: str, data: Any, error: ErrorInfo | None) -> None:
        body = None if error is not None else encode(data)
        try:
            self.tell_coordinator(CompleteMessage(request_id, stage, body, error))
        except TransportError:
            logger.exception("the coordinator does not read; the end of request %s is lost", request_id)

    def stream_to_client(self, request_id: str, stage: str, chunk_id: int, data: Any) -> None:
        self.tell_coordinator(StreamMessage(request_id, stage, chunk_id, encode(data)))

    def release(self, request_id: str) -> None:
        if self._relay is not None:
            self._relay.cleanup(request_id)
