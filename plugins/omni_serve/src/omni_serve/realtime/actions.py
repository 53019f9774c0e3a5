"""The actions that a session asks for."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from omni_serve.realtime.audio import Wire
from omni_serve.realtime.config import SessionConfig
from omni_serve.realtime.items import Item
from omni_serve.realtime.reply import Event


@frozen
class Send:
    """Send an event to the client."""

    event: Event


@frozen
class Start:
    """Ask the pipeline for a reply, and hand its pieces to the session under this id."""

    reply: str
    messages: list[dict[str, Any]]
    config: SessionConfig


@frozen
class Abort:
    """Abort the rest of a reply, which is not wanted any more."""

    reply: str


@frozen
class Transcribe:
    """Write a recording down."""

    item: str
    recording: bytes
    language: str | None
    prompt: str | None


@frozen
class Show:
    """Send an item together with its sound in a format of the wire; that may take a while to make."""

    item: Item
    wire: Wire

    def event(self, event_id: str) -> Event:
        """Return the event."""
        return {"type": "conversation.item.retrieved", "event_id": event_id, "item": self.item.shown(self.wire)}


Action = Send | Start | Abort | Transcribe | Show
