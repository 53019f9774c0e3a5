"""The ways out of one process: to stages of other processes, and to the coordinator. Made before the stages, which share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from omni_core.control.lanes import in_thread
from omni_core.control.plane import ControlPlane
from omni_core.errors import TransportError
from omni_core.observe.metrics import StageMetrics
from omni_core.observe.recording import Recorder
from omni_core.protocol.codec import encode_whole, is_large
from omni_core.protocol.messages import (
    CompleteMessage,
    DataReadyMessage,
    ErrorInfo,
    FlowMessage,
    InputTaken,
    OmniRequest,
    StageSpan,
    StreamMessage,
)
from omni_core.protocol.specs import ProcessSpec
from omni_core.relay.table import Relays
from omni_core.relay.transfer import Encodings, Transfer
from omni_core.stage.active_requests import ActiveRequest

if TYPE_CHECKING:
    from omni_core.stage.stage import Stage


class Outbound:
    """Sends what the stages of one process put out.

    Attributes:
        lock: held around every change of any stage of the process.
        local: the stages of this process by name; a value for one of these is handed over by reference.
        recorder: where sends are recorded while a profile is on.
        on_failure: called with each failure of a request that was reported.
        services: the references of its launch spec.
    """

    def __init__(self, spec: ProcessSpec, control: ControlPlane, transfer: Transfer, relays: Relays) -> None:
        self.lock = threading.RLock()
        self.local: dict[str, Stage] = {}
        self.recorder: Recorder | None = None
        self.on_failure: Callable[[ErrorInfo], None] = lambda error: None
        self.services = spec.services
        self._spec = spec
        self._control = control
        self._transfer = transfer
        self._relays = relays

    def _endpoint(self, stage: str, request: OmniRequest | None) -> str:
        """The process that serves ``request`` in ``stage``. Raises TransportError: it has left."""
        replicas = self._spec.stage_endpoints[stage]
        number = 0 if request is None else request.placement.get(stage, 0)
        if number in replicas:
            return replicas[number]
        if len(replicas) == 1 and (request is None or stage not in request.placement):  # of a stream without chunks
            return next(iter(replicas.values()))
        raise TransportError(f"replica {number} of stage {stage!r}, which was to serve this request, has ended")

    async def send(
        self,
        source: str,
        target: str,
        active: ActiveRequest,
        value: Any,
        metrics: StageMetrics,
        encodings: Encodings | None = None,
        **message: Any,
    ) -> None:
        """Send a value to a stage of another process, and wait until more may be sent.

        Args:
            metrics: count the message, its bytes and its time.
            encodings: what the value was encoded to for other stages; see :meth:`Transfer.send`.
            message: further fields of the :class:`DataReadyMessage`.

        Raises:
            CodecError: something in the value cannot be sent.
        """
        endpoint, request_id = self._endpoint(target, active.request), active.request_id
        active.sending_to = target
        begin = time.monotonic()
        sent = await self._transfer.send(
            endpoint, value, encodings, request_id=request_id, stage=target, from_stage=source, **message
        )
        if self.recorder is not None:
            flow = (source, target, message.get("chunk_id"))
            # Without the wait: the thread did other work meanwhile, and slices of one thread must not overlap.
            begin_ns = int((begin + sent.waited) * 1e9)
            self.recorder.slice(
                f"send to {target}", begin_ns, request_id, flow, starts=True, bytes=sent.nbytes, by=sent.by
            )
            if sent.waited:
                self.recorder.instant(request_id, f"{source}: waited to send to {target}", source, waited=sent.waited)
        if self._control.is_behind(endpoint):
            await self._control.room(endpoint)
        active.sending_to = None
        metrics.sent(target, sent.nbytes, time.monotonic() - begin)

    def end_stream(
        self, source: str, target: str, request_id: str, request: OmniRequest | None, handed_to: Any
    ) -> None:
        """Tell a stage of another process that the stream to it is complete."""
        message = DataReadyMessage(request_id, target, source, is_stream=True, is_done=True, handed_to=handed_to)
        self._control.send(self._endpoint(target, request), message, (request_id, target))

    def flow(self, source: str, request_id: str, request: OmniRequest | None, target: str, *, paused: bool) -> None:
        """Tell the stage that streams to ``target`` whether to wait. On the event loop only."""
        local = self.local.get(source)
        if local is not None:
            local.flow(request_id, target, paused=paused)
        else:
            with suppress(TransportError):  # its process has ended
                self._control.tell(self._endpoint(source, request), FlowMessage(request_id, target, paused))

    def input_taken(self, request_id: str, chunks: int, *, is_over: bool = False) -> None:
        """Tell the client that chunks of its stream were taken, or that no more are needed."""
        self.tell_coordinator(InputTaken(request_id, chunks, is_over))

    async def send_to_client(self, source: str, request_id: str, data: Any, chunk_id: int | None = None) -> None:
        """Send a terminal stage's partial result with number ``chunk_id``, or without one its final result, to the coordinator.

        After a partial result, waits until more may be sent.
        """
        begin = time.monotonic_ns()
        body, has_tensors = await in_thread(encode_whole, data) if is_large(data) else encode_whole(data, checked=True)
        if chunk_id is None:
            message = CompleteMessage(request_id, source, body, None, has_tensors)
            self._control.tell(self._spec.coordinator_endpoint, message)
        else:
            self.tell_coordinator(StreamMessage(request_id, source, chunk_id, body, has_tensors))
        if self.recorder is not None:
            flow = (source, "client", chunk_id)
            self.recorder.slice("send to client", begin, request_id, flow, starts=True)
        if chunk_id is not None and self._control.is_behind(self._spec.coordinator_endpoint):
            await self._control.room(self._spec.coordinator_endpoint)

    def fail(self, source: str, request_id: str, error: ErrorInfo) -> None:
        """Report the failure of a request to the coordinator, and free what the relays hold for it."""
        self._control.tell(self._spec.coordinator_endpoint, CompleteMessage(request_id, source, None, error))
        self._relays.cleanup(request_id)
        self.on_failure(error)

    def leave_out(self, source: str, request_id: str, terminals: list[str]) -> None:
        """Report that the route of a request leads to none of these, which is an error if the client waits for one."""
        names = " and ".join(map(repr, terminals))
        message = (
            f"stages[{source}].route_fn chose no stage that leads to {names}, whose result the request waits for; choose one, or "
            f"let the pipeline's terminal_stages_fn leave {names} out"
        )
        error = ErrorInfo(source, "ConfigError", message)
        self.tell_coordinator(CompleteMessage(request_id, source, None, error, left_out=terminals))

    def span(self, source: str, request_id: str, seconds: float, error: str) -> None:
        """Report the time of a traced request in a stage, which ends now."""
        now = time.time_ns()
        self.tell_coordinator(StageSpan(request_id, source, now - int(seconds * 1e9), now, error))

    def tell_coordinator(self, message: Any) -> None:
        """Send a control message to the coordinator. From any thread."""
        self._control.send(self._spec.coordinator_endpoint, message)
