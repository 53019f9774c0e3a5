"""The scheduler of stages without autoregression: a function, a batch function or a generator function, in a loop."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from omni_core.errors import ConfigError
from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_core.scheduling.loop import LoopScheduler

Compute = Callable[[StagePayload], Any]
BatchCompute = Callable[[list[StagePayload]], Sequence[Any]]


class SimpleScheduler(LoopScheduler):
    """``inbox -> compute -> outbox``, one batch at a time in one thread.

    Args:
        compute: payload to result (its data, or a whole :class:`StagePayload`). If it returns a generator, each value that it
            yields is streamed: to the client where the stage is terminal, else to every stage of ``stream_to``. The value
            that it returns is the result. An abort closes it at its next ``yield``. While too much of what it has yielded waits for
            a slow reader, it is not asked for more, and the requests behind it wait.
        batch_compute: several payloads to as many results. If it raises, the requests are computed one by one, so that
            only the guilty one fails.
        max_batch_size: how many waiting requests ``batch_compute`` gets at once.
        batch_wait: seconds to wait for a batch to fill, from its first request on.
    """

    def __init__(
        self,
        compute: Compute,
        batch_compute: BatchCompute | None = None,
        max_batch_size: int = 1,
        batch_wait: float = 0.0,
    ) -> None:
        super().__init__()
        self._compute = compute
        self._batch_compute = batch_compute if max_batch_size > 1 else None
        self._max_batch_size = max_batch_size
        self._batch_wait = batch_wait
        self._running: dict[str, float] = {}
        self._paused: set[str] = set()
        self._resumed = threading.Condition()
        self._batches = self._computed = 0

    @classmethod
    def of_batches(cls, batch_compute: BatchCompute, batch_size: Any = 1, batch_wait: Any = 0.0) -> SimpleScheduler:
        """Make the scheduler of a batch function from a config's ``batch_size`` and ``batch_wait`` (seconds).

        Raises:
            ConfigError: a value out of range; the message begins with its name.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size: must be a whole number of requests, 1 or more, is {batch_size!r}")
        is_number = isinstance(batch_wait, int | float) and not isinstance(batch_wait, bool)
        if not is_number or not 0 <= batch_wait < math.inf:
            raise ConfigError(f"batch_wait: must be a number of seconds, 0 or more, is {batch_wait!r}")
        if batch_wait and batch_size == 1:
            raise ConfigError("batch_wait: has no effect without a batch_size of 2 or more")

        def one(payload: StagePayload) -> Any:
            [result] = batch_compute([payload])
            return result

        return cls(one, batch_compute, batch_size, batch_wait)

    def statistics(self) -> dict[str, float]:
        return {
            "waiting": float(len(self.inbox)),
            "running": float(len(self._running)),
            "steps": float(self._batches),
            "computed": float(self._computed),
        }

    def running_computes(self) -> dict[str, float]:
        """The requests of the running compute, with the ``time.monotonic()`` of its begin. From any thread."""
        return self._running

    def pause(self, request_id: str, paused: bool) -> None:
        """Ask the generator of a request for no more values, or go on. From any thread."""
        with self._resumed:
            (self._paused.add if paused else self._paused.discard)(request_id)
            self._resumed.notify_all()

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        with self._resumed:
            self._resumed.notify_all()

    def stop(self) -> None:
        super().stop()
        with self._resumed:
            self._resumed.notify_all()

    def turn(self) -> bool:
        first = self.inbox.get()
        if first is None:
            return False
        if first.request_id:
            self._run([message.data for message in self._batch(first) if message.type == "new_request"])
        self.drop_aborted()
        return True

    def _batch(self, first: IncomingMessage) -> list[IncomingMessage]:
        if self._max_batch_size == 1:
            return [first]
        batch = [first, *self.inbox.drain(self._max_batch_size - 1)]
        end = time.monotonic() + self._batch_wait
        while self._batch_wait and len(batch) < self._max_batch_size and (left := end - time.monotonic()) > 0:
            following = self.inbox.get(left)
            if following is None:
                break
            batch.append(following)
        return batch

    def _run(self, batch: list[StagePayload]) -> None:
        batch = [payload for payload in batch if not self.is_aborted(payload.request_id)]
        self._batches += bool(batch)
        self._computed += len(batch)
        if self._batch_compute is not None and len(batch) > 1:
            self._running = dict.fromkeys([payload.request_id for payload in batch], time.monotonic())
            try:
                results = self._batch_compute(batch)
                if len(results) != len(batch):
                    raise ValueError(f"the batch function returned {len(results)} results for {len(batch)} requests")
                results = list(zip(batch, results, strict=True))
            except BaseException:
                results = None
            self._running = {}
            if results is not None:
                for payload, result in results:
                    self.put_out(OutgoingMessage(payload.request_id, "result", result))
                return
        for payload in batch:
            if not self.is_aborted(payload.request_id):
                self._running = {payload.request_id: time.monotonic()}
                self.put_out(self._outcome(payload))  # no local: see _outcome
                self._running = {}

    def _outcome(self, payload: StagePayload) -> OutgoingMessage:
        """Compute one request.

        Its own function, and its caller keeps the result in no local: a traceback's frames, and the frames that called them, must not
        refer to the error, or the cycle would keep the payload and its relay memory until the next garbage collection.
        """
        try:
            result = self._compute(payload)
            if isinstance(result, Generator):
                result = self._stream(payload.request_id, result)
            return OutgoingMessage(payload.request_id, "result", result)
        except BaseException as error:  # SystemExit and MemoryError too: they are this request's alone
            return OutgoingMessage(payload.request_id, "error", error)

    def _stream(self, request_id: str, values: Generator[Any, None, Any]) -> Any:
        """Stream what a generator yields; the value that it returns."""
        while not self.is_aborted(request_id):
            self._running = {request_id: time.monotonic()}  # each value is a compute of its own
            try:
                value = next(values)
            except StopIteration as end:
                return end.value
            self._running = {}  # while it waits for readers it computes nothing
            self.put_out(OutgoingMessage(request_id, "stream", value))
            if request_id in self._paused:
                self._wait_for_readers(request_id)
        return values.close()

    def _wait_for_readers(self, request_id: str) -> None:
        with self._resumed:
            self._resumed.wait_for(
                lambda: request_id not in self._paused or self.is_aborted(request_id) or self.inbox.closed
            )
