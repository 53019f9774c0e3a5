"""The peer's side of ``stages.py``: factories and functions that its stage processes import by name, in its own
environment.
"""

from __future__ import annotations

import time
from functools import cache
from queue import Queue
from typing import Any

import torch
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.message import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler


def _with_data(payload: StagePayload, data: Any) -> StagePayload:
    return StagePayload(request_id=payload.request_id, request=payload.request, data=data)


def _entry(payload: StagePayload) -> StagePayload:
    """Pass the inputs on as data, except a blob that no further stage reads."""
    blob = payload.request.inputs.get("blob")
    return payload if blob is None else _with_data(payload, {"bytes": len(blob)})


@cache
def _ones(nbytes: int) -> torch.Tensor:
    return torch.ones(nbytes // 4)


def _attach(payload: StagePayload) -> StagePayload:
    """A tensor of the requested size; made once, so that no time goes into filling it."""
    return _with_data(payload, {"t": _ones(payload.request.inputs["nbytes"])})


def _read(payload: StagePayload) -> StagePayload:
    tensor = payload.data["t"]
    return _with_data(payload, {"numel": tensor.numel(), "first": float(tensor[0]), "last": float(tensor[-1])})


def merge(payloads: dict[str, StagePayload]) -> StagePayload:
    """The fan-in of the diamond: every source's data under its name."""
    return _with_data(payloads["preprocess"], {name: payload.data for name, payload in payloads.items()})


def entry() -> SimpleScheduler:
    return SimpleScheduler(_entry)


def noop() -> SimpleScheduler:
    return SimpleScheduler(lambda payload: payload)


def attach() -> SimpleScheduler:
    return SimpleScheduler(_attach)


def read() -> SimpleScheduler:
    return SimpleScheduler(_read)


class _Loop:
    """The interface of a streaming scheduler of the peer's: two queues, and a thread that runs ``start``."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage] = Queue()
        self.outbox: Queue[OutgoingMessage] = Queue()
        self._stopped = False

    def warm_up_serving_thread(self) -> None:
        """Do nothing: there is nothing to warm up."""

    def start(self) -> None:
        while not self._stopped:
            self.handle(self.inbox.get())

    def stop(self) -> None:
        self._stopped = True
        self.inbox.put(IncomingMessage("", "wakeup"))

    def abort(self, request_id: str) -> None:
        """Do nothing: the workloads abort nothing."""

    def handle(self, message: IncomingMessage) -> None:
        raise NotImplementedError


class Producer(_Loop):
    """Streams the chunks that a request asks for, as fast as it can."""

    def handle(self, message: IncomingMessage) -> None:
        if message.type != "new_request":
            return
        inputs = message.data.request.inputs
        chunk = torch.ones(inputs["chunk_bytes"] // 4)
        for _ in range(inputs["chunks"]):
            self.outbox.put(OutgoingMessage(message.request_id, "stream", chunk, target="consumer"))
        self.outbox.put(OutgoingMessage(message.request_id, "result", _with_data(message.data, {})))


class Consumer(_Loop):
    """Records the times of the first and the last chunk; answers once it has the end of the stream and the payload."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, dict[str, Any]] = {}
        self._payloads: dict[str, StagePayload] = {}
        self._done: set[str] = set()

    def handle(self, message: IncomingMessage) -> None:
        name = message.request_id
        if message.type == "stream_chunk":
            seen = self._seen.setdefault(name, {"chunks": 0})
            seen["last"] = time.monotonic()
            seen.setdefault("first", seen["last"])
            seen["chunks"] += 1
        elif message.type == "new_request":
            self._payloads[name] = message.data
        elif message.type == "stream_done":
            self._done.add(name)
        if name in self._done and name in self._payloads:
            self._done.remove(name)
            result = _with_data(self._payloads.pop(name), self._seen.pop(name))
            self.outbox.put(OutgoingMessage(name, "result", result))
