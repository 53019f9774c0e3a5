"""The output side of a stage: takes what its scheduler puts out and hands it to other stages, or to the client, in order."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from omni_core.control.back_pressure import MOST_OUTPUT_BYTES, MOST_OUTPUTS, Backlog
from omni_core.control.lanes import Lanes, Step, in_task
from omni_core.observe.metrics import StageMetrics
from omni_core.protocol.specs import StageSpec
from omni_core.protocol.structure import rough_nbytes
from omni_core.relay.transfer import Encodings
from omni_core.scheduling.base import OutgoingMessage, Scheduler
from omni_core.services import MUTATION_SEAL
from omni_core.stage.active_requests import ActiveRequest, Requests, Seal
from omni_core.stage.groups import Groups
from omni_core.stage.outbound import Outbound
from omni_core.stage.routing import Routing

if TYPE_CHECKING:
    from omni_core.stage.stage import Stage


class Outputs:
    """Hands on the outputs of one stage: those of one request in order, those of different requests independently.

    Args:
        requests: the active requests of the stage; the output of a request that is not among them is dropped.
        groups: those that its scheduler computes in parts.
        on_full: called with a request's id when too many of its outputs wait, and when there is room again.
        complete: called with a request when everything of it has been handed on.
        fail: called with a request's id and the error that it failed with.
    """

    def __init__(
        self,
        spec: StageSpec,
        scheduler: Scheduler,
        requests: Requests,
        outbound: Outbound,
        metrics: StageMetrics,
        groups: Groups,
        on_full: Callable[[str, bool], None],
        complete: Callable[[ActiveRequest], None],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self._spec = spec
        self._scheduler = scheduler
        self._requests = requests
        self._outbound = outbound
        self._metrics = metrics
        self._groups = groups
        self._on_full = on_full
        self._backlog: Backlog[str] = Backlog(MOST_OUTPUTS, MOST_OUTPUT_BYTES)
        self._resumed: dict[str, asyncio.Future[None]] = {}
        """By request, the step that waits for a reader that takes nothing now."""
        self._complete = complete
        self._fail = fail
        self._routing = Routing(spec, outbound.local)
        self._lanes: Lanes[str] = Lanes(fail, outbound.lock, self._regulate)
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._regulation = threading.Lock()
        self._drain_is_due = False
        self._stays_here = False
        self._seal_of: Callable[[Any, str], Seal] | None = None
        if os.environ.get("OMNI_CHECK_MUTATION", "0") not in ("", "0"):
            self._seal_of = MUTATION_SEAL.needed("OMNI_CHECK_MUTATION needs", outbound.services)

    def start(self) -> None:
        """Take outputs from now on. Every stage of the process exists by now."""
        targets = [*self._spec.next, *self._spec.stream_to]
        # If every output stays in the process, the thread that made it can hand it over by itself.
        self._stays_here = bool(targets) and all(target in self._outbound.local for target in targets)
        self._scheduler.outbox.on_put = self._wake
        self._scheduler.outbox.bound(MOST_OUTPUTS, self._thread_id)

    def stop(self) -> None:
        """Let the scheduler end: nobody takes what it puts out."""
        self._scheduler.outbox.bound(None)

    def is_full(self, request_id: str) -> bool:
        """Return whether too many outputs of a request wait."""
        return self._backlog.is_full(request_id)

    def flow(self, active: ActiveRequest, target: str, *, paused: bool) -> None:
        """Send a request's chunks to a reader no more, or again. On the event loop only."""
        (active.held.add if paused else active.held.discard)(target)
        resumed = self._resumed.get(active.request_id)
        if resumed is not None and not resumed.done():
            resumed.set_result(None)

    def hold(self, held: bool) -> None:
        """Take nothing from the outbox, where the scheduler then waits with its next output. On the event loop only."""
        self._scheduler.outbox.hold(held)
        if not held:
            self._loop.call_soon(self._drain_on_loop)

    def cancel(self, request_id: str) -> None:
        """Drop what waits to be handed on for a request that is over. On the event loop only."""
        self._lanes.cancel(request_id)
        if self._backlog.end(request_id):
            self._on_full(request_id, False)

    def __len__(self) -> int:
        """Return how many requests have an output that waits to be handed on."""
        return len(self._lanes)

    def _wake(self) -> None:
        """There is output. Called in the thread that made it, so it waits for nothing, the lock included."""
        lock = self._outbound.lock
        if self._stays_here and threading.get_ident() != self._thread_id and lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                lock.release()
            return
        self._regulate()
        if self._drain_is_due:
            return
        self._drain_is_due = True  # set back before the outbox is drained, so what was put before is drained too
        try:
            self._loop.call_soon_threadsafe(self._drain_on_loop)
        except RuntimeError:
            return  # the loop is closed: the process is ending

    def _drain_on_loop(self) -> None:
        self._drain_is_due = False
        with self._outbound.lock:
            self._drain()
        self._regulate()

    def _drain(self) -> None:
        for output in self._scheduler.outbox.drain():
            message = self._groups.collect(output) if self._groups.used else output
            if message is None:
                continue
            active = self._requests.get(message.request_id)
            if active is not None:
                hand_on = self._hand_on_chunk if message.type == "stream" else self._hand_on_end
                step = partial(hand_on, message, active)
                if message.request_id in self._lanes:
                    step = partial(self._hand_on_late, step, message.request_id)
                    if self._backlog.add(message.request_id, rough_nbytes(message.data)):
                        self._on_full(message.request_id, True)
                self._lanes.run(message.request_id, step)

    async def _hand_on_late(self, step: Step, request_id: str) -> None:
        if self._backlog.take(request_id):
            self._on_full(request_id, False)
        await step()

    async def _until_taken(self, active: ActiveRequest, target: str) -> None:
        """Wait until a reader takes chunks."""
        await in_task()
        while target in active.held and not active.is_over:
            resumed = self._resumed[active.request_id] = self._loop.create_future()
            self._regulate()
            try:
                await resumed
            finally:
                del self._resumed[active.request_id]

    def _regulate(self) -> None:
        """Back-pressure: let the scheduler begin new requests or not, after a change of what waits to be handed on. From any thread.

        A stage that is streamed to is never held: others may hold memory until it has seen the end of what it has begun.
        """
        if self._spec.stream_from:
            return
        with self._regulation:
            # A request whose reader is slow has bounds of its own, and must not stop the others.
            waiting = len(self._lanes) - len(self._resumed) + len(self._scheduler.outbox)
            self._scheduler.inbox.hold(waiting >= MOST_OUTPUTS)

    async def _hand_on_chunk(self, message: OutgoingMessage, active: ActiveRequest) -> None:
        if active.is_over:
            return
        is_read = active.request is not None and active.request.stream
        if message.target is None and self._spec.terminal and is_read:
            if "" in active.held:
                await self._until_taken(active, "")
            number = active.count_chunk("")
            await self._outbound.send_to_client(self._spec.name, active.request_id, message.data, number)
        for target in self._routing.of_chunk(active, message.target):
            if target in active.held:
                await self._until_taken(active, target)
            number = active.count_chunk(target)
            # The first chunk carries the request, because it may come before the payload does.
            value = (message.data, message.metadata, active.request if number == 0 else None)
            local = self._outbound.local.get(target)
            if local is not None:
                self._seal(local, active.request_id, message.data)
                local.receive_chunk(active.request_id, self._spec.name, value)
                self._metrics.sent(target, 0, 0.0)
            else:
                await self._outbound.send(
                    self._spec.name, target, active, value, self._metrics, is_stream=True, chunk_id=number
                )

    async def _hand_on_end(self, message: OutgoingMessage, active: ActiveRequest) -> None:
        if active.is_over:
            return
        if message.type == "error":
            self._fail(message.request_id, message.data)
            return
        for sealed in active.seals:
            sealed.check(self._spec.name)
        payload = active.payload(message.data)
        if self._spec.terminal:
            await self._outbound.send_to_client(self._spec.name, active.request_id, payload.data)
        if self._spec.next:
            route = self._routing.of_result(active, payload)
            if route.left_out:
                self._outbound.leave_out(self._spec.name, active.request_id, route.left_out)
            for target in route.streams:
                self._end_stream(target, active, route.handed_to)
            encodings: Encodings | None = {} if len(route.payloads) > 1 else None
            for target, each in route.payloads:
                local = self._outbound.local.get(target)
                if local is not None:
                    self._seal(local, active.request_id, each.data)
                    local.receive_payload(each, self._spec.name)
                    self._metrics.sent(target, 0, 0.0)
                else:
                    await self._outbound.send(
                        self._spec.name, target, active, each, self._metrics, encodings, handed_to=route.handed_to
                    )
        self._complete(active)

    def _end_stream(self, target: str, active: ActiveRequest, handed_to: Any) -> None:
        local = self._outbound.local.get(target)
        if local is not None:
            local.receive_done(active.request_id, self._spec.name)
        else:
            self._outbound.end_stream(self._spec.name, target, active.request_id, active.request, handed_to)

    def _seal(self, target: Stage, request_id: str, data: Any) -> None:
        """In the debug mode: let ``target`` check at its end of the request that the object it got was not changed."""
        if self._seal_of is not None:
            target.add_seal(request_id, self._seal_of(data, self._spec.name))
