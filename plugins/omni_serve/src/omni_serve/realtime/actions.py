"""The actions that a session asks for."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from omni_serve.encoders import Samples
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
    """Abort the rest of a reply, or of a transcript by the id of its item, which is not wanted any more.

    Attributes:
        overrun: the recogniser did not keep up.
    """

    reply: str
    overrun: bool = False


@frozen
class Transcribe:
    """Write a recording down."""

    item: str
    recording: bytes
    language: str | None
    prompt: str | None


@frozen
class Listen:
    """Write down sound that is still coming, and will become an item."""

    item: str
    language: str | None
    prompt: str | None


@frozen
class Feed:
    """Send the next sound to the request that listens. ``samples``: float32 at :data:`~omni_serve.realtime.audio.INPUT_RATE`."""

    item: str
    samples: Samples = field(repr=False)


@frozen
class Finish:
    """End the sound of the request that listens."""

    item: str


@frozen
class Show:
    """Send an item together with its sound in a format of the wire; that may take a while to make."""

    item: Item
    wire: Wire

    def event(self, event_id: str) -> Event:
        """Return the event."""
        return {"type": "conversation.item.retrieved", "event_id": event_id, "item": self.item.shown(self.wire)}


Action = Send | Start | Abort | Transcribe | Listen | Feed | Finish | Show
