"""An abort between two messages that were taken from the inbox together leaves nothing behind."""

from __future__ import annotations

from typing import Any

from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage
from omni_core.scheduling.streaming import StreamingScheduler


class Collector(StreamingScheduler[list[Any]]):
    def new_state(self, request_id: str, request: OmniRequest | None) -> list[Any]:
        return []

    def on_chunk(self, state: list[Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state.append(chunk)
        if chunk == "abort now":
            self.abort("r")

    def finish(self, request_id: str, state: list[Any]) -> list[Any]:
        return state


def test_an_abort_between_two_drained_messages_leaves_no_state() -> None:
    scheduler = Collector()
    for chunk in ("abort now", "second", "third"):
        scheduler.inbox.put(IncomingMessage("r", "stream_chunk", chunk))
    scheduler.inbox.put(IncomingMessage("other", "stream_chunk", "kept"))
    while len(scheduler.inbox):
        assert scheduler._serve_once()
    assert scheduler.statistics()["running"] == 1, "only the other request is there"
