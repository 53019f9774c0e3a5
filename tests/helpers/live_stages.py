"""Stages of pipelines that change while they run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage


def begin(payload: StagePayload) -> dict[str, Any]:
    """Hand on what the request says."""
    return dict(payload.request.inputs)


def work(
    mark: str = "old", weights: str | None = None, building: str | None = None
) -> Callable[[StagePayload], dict[str, Any]]:
    """A stage that waits as long as a request says, or until there is a file, and answers with its mark and pid.

    Args:
        weights: a file that must be there. building: a file that it makes, and then builds for a minute.
    """
    if weights is not None:
        Path(weights).read_bytes()
    if building is not None:
        Path(building).write_text(str(os.getpid()))
        time.sleep(60)

    def compute(payload: StagePayload) -> dict[str, Any]:
        time.sleep(payload.data.get("seconds", 0.0))
        while "until" in payload.data and not Path(payload.data["until"]).exists():
            time.sleep(0.01)
        return {**payload.data, "mark": mark, "pid": os.getpid()}

    return compute


class Counting:
    """Streams the numbers below ``count`` to the client, one in each 10 ms, for all requests beside each other."""

    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self._left: dict[str, tuple[int, int]] = {}

    def start(self) -> None:
        """Compute until it is stopped."""
        while not self.inbox.closed:
            message = self.inbox.get(0.01 if self._left else None)
            if message is not None:
                self._left[message.request_id] = (0, message.data.data["count"])
            for name, (number, count) in list(self._left.items()):
                if number == count:
                    self.outbox.put(OutgoingMessage(name, "result", {"count": count, "pid": os.getpid()}))
                    del self._left[name]
                else:
                    self.outbox.put(OutgoingMessage(name, "stream", number))
                    self._left[name] = (number + 1, count)

    def stop(self) -> None:
        """End the loop."""
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self._left.pop(request_id, None)
