"""The events of clients: their names and fields, what is wrong with one, and the form of the ``error`` event that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.errors import did_you_mean, shown
from omni_serve.errors import ApiError, invalid
from omni_serve.identities import random_hex

EVENTS: dict[str, tuple[str, ...]] = {
    "session.update": ("session",),
    "input_audio_buffer.append": ("audio",),
    "input_audio_buffer.commit": (),
    "input_audio_buffer.clear": (),
    "conversation.item.create": ("item", "previous_item_id"),
    "conversation.item.retrieve": ("item_id",),
    "conversation.item.delete": ("item_id",),
    "conversation.item.truncate": ("item_id", "content_index", "audio_end_ms"),
    "response.create": ("response",),
    "response.cancel": ("response_id",),
}
"""The client's events and their fields."""

ELSEWHERE = {
    "output_audio_buffer.clear": "is for WebRTC; over a WebSocket stop your player and send conversation.item.truncate",
    "transcription_session.update": "is a name of the beta API; it is session.update with type 'transcription' now, "
    "which this server does not offer: use /v1/audio/transcriptions",
}
"""Events that OpenAI's clients know and this server does not have."""


def new_id(prefix: str) -> str:
    """Return an identifier."""
    return f"{prefix}_{random_hex(10)}"


def kind_of(event: Mapping[str, Any]) -> str:
    """Return the type of an event.

    Raises:
        ApiError: 400, there is no such event, or it has no such field.
    """
    kind = event.get("type")
    if kind in ELSEWHERE:
        raise invalid(f"type: {kind} {ELSEWHERE[kind]}", "type", "unsupported_event")
    if not isinstance(kind, str) or kind not in EVENTS:
        raise invalid(f"type: no event is called {shown(kind)}{did_you_mean(kind, EVENTS)}", "type", "unknown_event")
    for name in event:
        if name not in ("type", "event_id", *EVENTS[kind]):
            known = did_you_mean(name, EVENTS[kind])
            raise invalid(f"{name}: {kind} has no such field{known}", name, "unknown_parameter")
    return kind


def value_of(event: Mapping[str, Any], name: str, kind: type[Any], words: str) -> Any:
    """Return a field of an event.

    Args:
        kind: its type. words: the same for people.

    Raises:
        ApiError: 400, it is missing, or of another type.
    """
    value = event.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        code = "missing_required_parameter" if value is None else "invalid_type"
        raise invalid(f"{name}: must be {words}", name, code)
    return value


def error_of(error: ApiError, event_id: Any = None) -> dict[str, Any]:
    """Return an error as it is in an event."""
    body = error.body["error"]
    made = {name: body[name] for name in ("type", "code", "message", "param")}
    return {**made, "event_id": event_id if isinstance(event_id, str) else None}


def error_event(error: ApiError) -> dict[str, Any]:
    """Return the event that ends a session."""
    return {"type": "error", "event_id": new_id("event"), "error": error_of(error)}
