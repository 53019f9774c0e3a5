"""Streams: the end of several sources, and aborts between their messages."""

from __future__ import annotations

from typing import Any

from omni_core.protocol.messages import OmniRequest, StagePayload
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
        assert scheduler.turn()
    assert scheduler.statistics()["running"] == 1, "only the other request is there"


class Parts(Collector):
    """Chunks of two stages; the payload comes from one of them."""


def test_a_request_waits_for_the_streams_of_all_sources_and_names_them() -> None:
    scheduler = Parts(sources=("upper", "tone"))
    payload = StagePayload("r", OmniRequest())
    for message in (
        IncomingMessage("r", "new_request", payload, "upper"),
        IncomingMessage("r", "stream_chunk", "a", "upper"),
        IncomingMessage("r", "stream_done", None, "upper"),
    ):
        scheduler.inbox.put(message)
    assert scheduler.turn()
    assert scheduler.waiting("r") == "the end of the stream from 'tone'"
    assert scheduler.waiting("unknown") == ""
    scheduler.inbox.put(IncomingMessage("r", "stream_done", None, "tone"))
    assert scheduler.turn()
    assert [message.data for message in scheduler.outbox.drain()] == [["a"]]
    assert scheduler.waiting("r") == ""


def test_by_default_a_request_waits_for_the_stream_of_its_payload_s_source() -> None:
    scheduler = Collector()
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", OmniRequest()), "upper"))
    assert scheduler.turn()
    assert scheduler.waiting("r") == "the end of the stream from 'upper'"


def test_a_stream_without_its_payload_waits_for_it() -> None:
    scheduler = Collector()
    scheduler.inbox.put(IncomingMessage("r", "stream_chunk", "a", "upper"))
    assert scheduler.turn()
    assert scheduler.waiting("r") == "its payload"
