"""An engine in a thread of its own, with helpers to send requests and read results."""

from __future__ import annotations

import threading
import time
from typing import Any

from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_torch.engine.scheduler import EngineScheduler


class Driven:
    """Starts the scheduler; :meth:`close` stops it and checks that it ends."""

    def __init__(self, scheduler: EngineScheduler) -> None:
        self.scheduler = scheduler
        self.streamed: list[OutgoingMessage] = []
        self._thread = threading.Thread(target=scheduler.start, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.scheduler.stop()
        self._thread.join(5)
        assert not self._thread.is_alive()

    def ask(self, name: str, prompt: list[int], *, priority: int | None = None, **data: Any) -> None:
        request = OmniRequest(metadata={} if priority is None else {"priority": priority})
        self.scheduler.inbox.put(IncomingMessage(name, "new_request", {"prompt": prompt, **data}, None, None, request))

    def collect(self, count: int, seconds: float = 20.0) -> dict[str, OutgoingMessage]:
        """The final messages of ``count`` requests, in the order in which they came."""
        final: dict[str, OutgoingMessage] = {}
        end = time.monotonic() + seconds
        while len(final) < count:
            message = self.scheduler.outbox.get(max(0.0, end - time.monotonic()))
            assert message is not None, f"only {sorted(final)} finished"
            if message.type == "stream":
                self.streamed.append(message)
                continue
            assert message.request_id not in final, "answered twice"
            final[message.request_id] = message
        return final

    def answer(self, name: str, prompt: list[int], **data: Any) -> dict[str, Any]:
        """One request's result."""
        self.ask(name, prompt, **data)
        message = self.collect(1)[name]
        assert message.type == "result", message.data
        result: dict[str, Any] = message.data
        return result

    def statistics(self) -> dict[str, float]:
        return self.scheduler.statistics()

    def resting(self) -> bool:
        """Return True if everything is released within a second."""
        for _ in range(100):
            state = self.statistics()
            if state["free_blocks"] == state["total_blocks"] and not (
                state["running"] + state["waiting"] + state["pending"]
            ):
                return True
            time.sleep(0.01)
        return False
