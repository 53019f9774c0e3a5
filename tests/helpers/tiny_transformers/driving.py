"""Runs a stage of a checkpoint without a pipeline: its scheduler, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from omni_core.api import (
    AudioChunk,
    IncomingMessage,
    OmniRequest,
    OutgoingMessage,
    Scheduler,
    StagePayload,
    StreamingScheduler,
)


@contextmanager
def running(scheduler: Scheduler) -> Iterator[Scheduler]:
    """Run a scheduler until the end of the block."""
    thread = threading.Thread(target=scheduler.start, daemon=True)
    thread.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()
        thread.join(60)


def say(text: str, **params: Any) -> OmniRequest:
    """Return a request of one message."""
    return OmniRequest({"messages": [{"role": "user", "content": text}]}, params)


def send(scheduler: Scheduler, name: str, request: OmniRequest) -> None:
    """Give a scheduler a request."""
    scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, request)))


def write(scheduler: Scheduler, name: str, *chunks: Any, end: bool = True) -> None:
    """Send chunks of a request's input, and its end."""
    for chunk in chunks:
        scheduler.inbox.put(IncomingMessage(name, "stream_chunk", chunk))
    if end:
        scheduler.inbox.put(IncomingMessage(name, "stream_done"))


def send_sound(
    scheduler: Scheduler,
    name: str,
    pieces: Sequence[np.ndarray],
    params: dict[str, Any],
    rate: int = 16_000,
    ended: bool = True,
) -> None:
    """Give a scheduler a request whose sound comes in pieces."""
    send(scheduler, name, OmniRequest({"messages": []}, params))
    for each in pieces:
        scheduler.inbox.put(IncomingMessage(name, "stream_chunk", AudioChunk(each, rate)))
    if ended:
        scheduler.inbox.put(IncomingMessage(name, "stream_done"))


def outputs(scheduler: Scheduler, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return what requests have streamed, with their results or errors at the end."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    left = set(names)
    while left:
        message: OutgoingMessage | None = scheduler.outbox.get(60)
        if message is None:
            raise TimeoutError(f"{sorted(left)} have not ended after 60 s")
        found.setdefault(message.request_id, []).append(message.data)
        if message.type != "stream":
            left.discard(message.request_id)
    return found


def replies(scheduler: Scheduler, requests: Sequence[OmniRequest | StagePayload]) -> list[tuple[list[Any], Any]]:
    """Send requests, or their payloads, at once; return what each streamed, and its result. Raises the error of one that failed.

    Pieces of a request aborted before may still come; a result of it may not.
    """
    for number, request in enumerate(requests):
        payload = request if isinstance(request, StagePayload) else StagePayload(str(number), request)
        scheduler.inbox.put(IncomingMessage(str(number), "new_request", payload))
        if isinstance(scheduler, StreamingScheduler):  # a request that is whole
            scheduler.inbox.put(IncomingMessage(str(number), "stream_done"))
    streamed: dict[str, list[Any]] = {str(number): [] for number in range(len(requests))}
    results: dict[str, Any] = {}
    while len(results) < len(requests):
        message: OutgoingMessage | None = scheduler.outbox.get(60)
        if message is None:
            raise TimeoutError(f"{len(requests) - len(results)} requests have no result after 60 s")
        if message.type == "error":
            raise message.data
        if message.type == "stream":
            streamed.get(message.request_id, []).append(message.data)
        else:
            assert message.request_id in streamed, f"{message.request_id} was aborted and has a result"
            results[message.request_id] = message.data
    return [(each, results[name]) for name, each in streamed.items()]
