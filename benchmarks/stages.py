"""The stage functions of the runtime's workloads; our child processes import this module by name."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_core.scheduling.streaming import StreamingScheduler


def entry(payload: StagePayload) -> Any:
    """Copy the inputs to the data: without it a payload of ours is empty after the entry stage."""
    return payload.request.inputs


def keep_nothing(payload: StagePayload) -> Any:
    """An entry stage that does not pass its inputs on."""
    return {"bytes": len(payload.request.inputs["blob"])}


def noop(payload: StagePayload) -> Any:
    return payload


@cache
def _ones(nbytes: int) -> Any:
    import torch

    return torch.ones(nbytes // 4)


def attach(payload: StagePayload) -> Any:
    """A tensor of the requested size; made once, so that no time goes into filling it."""
    return {"t": _ones(payload.request.inputs["nbytes"])}


def read(payload: StagePayload) -> Any:
    tensor = payload.data["t"]
    return {"numel": tensor.numel(), "first": float(tensor[0]), "last": float(tensor[-1])}


def merge(payloads: dict[str, StagePayload]) -> Any:
    return {name: payload.data for name, payload in payloads.items()}


class Producer:
    """Streams the chunks that a request asks for, as fast as it can."""

    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()

    def start(self) -> None:
        import torch

        while (message := self.inbox.get()) is not None:
            inputs = message.data.request.inputs
            chunk = torch.ones(inputs["chunk_bytes"] // 4)
            for _ in range(inputs["chunks"]):
                self.outbox.put(OutgoingMessage(message.request_id, "stream", chunk))
            self.outbox.put(OutgoingMessage(message.request_id, "result", {}))

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)


class Consumer(StreamingScheduler[dict[str, Any]]):
    """Records the times of the first and the last chunk."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> dict[str, Any]:
        return {"chunks": 0}

    def on_chunk(self, state: dict[str, Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state["last"] = time.monotonic()
        state.setdefault("first", state["last"])
        state["chunks"] += 1

    def finish(self, request_id: str, state: dict[str, Any]) -> Any:
        return state
