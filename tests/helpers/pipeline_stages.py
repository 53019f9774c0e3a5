"""Stage functions, routes and merges that the runtime tests name by reference; children import this module."""

from __future__ import annotations

import os
import time
from typing import Any

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_core.scheduling.streaming import StreamingScheduler


def start(payload: StagePayload) -> dict[str, Any]:
    """The entry stage: takes the request's inputs and misbehaves if asked to."""
    inputs = payload.request.inputs
    if inputs.get("poison") == "exception":
        raise ValueError("a bad request")
    return dict(inputs)


def middle(payload: StagePayload) -> dict[str, Any]:
    time.sleep(payload.data.get("sleep", 0.0))
    return {**payload.data, "pid": os.getpid(), "inputs": payload.request.inputs}


def end(payload: StagePayload) -> dict[str, Any]:
    return {**payload.data, "end": True}


def big(payload: StagePayload) -> dict[str, Any]:
    import torch

    return {"tensor": torch.arange(payload.request.inputs["count"], dtype=torch.float32)}


def total(payload: StagePayload) -> float:
    return float(payload.data["tensor"].double().sum())


class Producer:
    """Streams ``count`` numbers (or tensors of ``size`` bytes) and then its result."""

    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            inputs = message.data.request.inputs
            for index in range(inputs["count"]):
                chunk: Any = index
                if inputs.get("size"):
                    import torch

                    chunk = torch.full((inputs["size"],), index % 250, dtype=torch.uint8)
                self.outbox.put(OutgoingMessage(message.request_id, "stream", chunk, metadata={"index": index}))
            self.outbox.put(OutgoingMessage(message.request_id, "result", {"sent": inputs["count"]}))

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)


class Consumer(StreamingScheduler[list[Any]]):
    """Collects chunks, re-streams each to the client, and reports what came."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[Any]:
        return [request_id]

    def on_chunk(self, state: list[Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        value = chunk if isinstance(chunk, int) else int(chunk[0])
        assert chunk is not None
        if not isinstance(chunk, int):
            assert int(chunk.min()) == int(chunk.max())
        assert metadata is not None
        state.append((metadata["index"], value))
        self.emit(state[0], value)

    def finish(self, request_id: str, state: list[Any]) -> Any:
        return {"chunks": state[1:]}


def fails_to_start() -> None:
    raise RuntimeError("no weights here")


def dies_at_start() -> None:
    print("my last words", file=__import__("sys").stderr, flush=True)
    os._exit(7)
