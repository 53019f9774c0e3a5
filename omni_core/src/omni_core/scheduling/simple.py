"""The scheduler of stages without autoregression: a function from payload to data, in a loop (seed 002, "SimpleScheduler")."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage

Compute = Callable[[StagePayload], Any]
BatchCompute = Callable[[list[StagePayload]], Sequence[Any]]


class SimpleScheduler:
    """``inbox -> compute -> outbox``, one batch at a time in one thread.

    Args:
        compute: payload to result (its data, or a whole :class:`StagePayload`).
        batch_compute: several payloads to as many results. If it raises, the batch's requests are computed one by one,
            so that only the guilty one fails.
        max_batch_size: how many waiting requests ``batch_compute`` gets at once.
    """

    def __init__(self, compute: Compute, batch_compute: BatchCompute | None = None, max_batch_size: int = 1) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self._compute = compute
        self._batch_compute = batch_compute if max_batch_size > 1 else None
        self._max_batch_size = max_batch_size
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._running: dict[str, float] = {}
        self._batches = self._computed = 0

    def start(self) -> None:
        while self._serve_once():
            continue

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)
        with self._lock:
            self._known.discard(request_id)

    def statistics(self) -> dict[str, float]:
        return {
            "waiting": float(len(self.inbox)),
            "running": float(len(self._known)),
            "steps": float(self._batches),
            "computed": float(self._computed),
        }

    def running_computes(self) -> dict[str, float]:
        """The requests of the running compute, with the ``time.monotonic()`` of its begin. From any thread."""
        return self._running

    def _serve_once(self) -> bool:
        """Wait for work and do it. Its own function, so that an idle scheduler keeps no payload (and no relay memory) alive."""
        first = self.inbox.get()
        if first is None:
            return False
        batch = [first, *self.inbox.drain(self._max_batch_size - 1)]
        self._run([message.data for message in batch if message.type == "new_request"])
        return True

    def _run(self, batch: list[StagePayload]) -> None:
        self._batches += 1
        self._computed += len(batch)
        with self._lock:
            self._known.update(payload.request_id for payload in batch)
        if self._batch_compute is not None and len(batch) > 1:
            self._running = dict.fromkeys([payload.request_id for payload in batch], time.monotonic())
            try:
                results = self._batch_compute(batch)
                if len(results) != len(batch):
                    raise ValueError(f"batch_compute returned {len(results)} results for {len(batch)} requests")
            except BaseException:
                results = None
            self._running = {}
            if results is not None:
                for payload, result in zip(batch, results, strict=True):
                    self._finish(OutgoingMessage(payload.request_id, "result", result))
                return
        for payload in batch:
            self._running = {payload.request_id: time.monotonic()}
            self._finish(self._outcome(payload))
        self._running = {}

    def _outcome(self, payload: StagePayload) -> OutgoingMessage:
        """Its own function, so that no frame of an error's traceback holds the error: such a cycle would keep the payload,
        and its relay memory, until the next garbage collection.
        """
        try:
            return OutgoingMessage(payload.request_id, "result", self._compute(payload))
        except BaseException as error:  # SystemExit and MemoryError too: they are this request's alone
            return OutgoingMessage(payload.request_id, "error", error)

    def _finish(self, message: OutgoingMessage) -> None:
        with self._lock:
            wanted = message.request_id in self._known
            self._known.discard(message.request_id)
        if wanted:
            self.outbox.put(message)
