"""An engine in a thread of its own, with helpers to send requests and read results."""

from __future__ import annotations

import threading
from typing import Any

from asking import collect, resting

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
        return collect(self.scheduler, count, seconds, self.streamed)

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
        return resting(self.scheduler)
