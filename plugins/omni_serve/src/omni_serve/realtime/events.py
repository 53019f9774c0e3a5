"""The events of clients: their names and fields, what is wrong with one, and the form of the ``error`` event that says so."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from omni_core.api import did_you_mean, shown
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import check_fields

EVENTS: dict[str, tuple[str, ...]] = {
    "session.update": ("session",),
    "transcription_session.update": ("session",),
    "input_audio_buffer.append": ("audio",),
    "input_audio_buffer.commit": (),
    "input_audio_buffer.clear": (),
    "input_image_buffer.append": ("image", "time_ms"),
    "input_image_buffer.clear": (),
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
}
"""Events that OpenAI's clients know and this server does not have."""

_ID_CHARACTERS = 512


def new_id(prefix: str) -> str:
    """Return an identifier."""
    return f"{prefix}_{secrets.token_hex(10)}"


def kind_of(event: Mapping[str, Any]) -> str:
    """Return the type of an event.

    Raises:
        ApiError: 400, there is no such event, or a field is misspelt.
    """
    check_event_id(event)
    kind = event.get("type")
    if not isinstance(kind, str):
        code = "missing_required_parameter" if kind is None else "invalid_type"
        raise invalid(f"type: must be the name of an event, is {kind!r:.80}", "type", code)
    if kind in ELSEWHERE:
        raise invalid(f"type: {kind} {ELSEWHERE[kind]}", "type", "unsupported_event")
    if kind not in EVENTS:
        raise invalid(f"type: no event is called {shown(kind)}{did_you_mean(kind, EVENTS)}", "type", "unknown_event")
    check_fields(event, ("type", "event_id", *EVENTS[kind]))
    return kind


def check_event_id(event: Mapping[str, Any]) -> None:
    """Raise ApiError 400 for a client's name of an event that is none: it is sent back."""
    if id_of(event) is None and event.get("event_id") is not None:
        message = f"event_id: must be text of at most {_ID_CHARACTERS} characters"
        raise invalid(
            message, "event_id", "invalid_type" if not isinstance(event["event_id"], str) else "invalid_value"
        )


def id_of(event: Mapping[str, Any]) -> str | None:
    """Return the client's name of an event, if it has one."""
    identity = event.get("event_id")
    return identity if isinstance(identity, str) and len(identity) <= _ID_CHARACTERS else None


def value_of(event: Mapping[str, Any], name: str, kind: type[Any], words: str) -> Any:
    """Return a field of an event.

    Args:
        kind: its type.
        words: the same for people.

    Raises:
        ApiError: 400, it is missing, or of another type.
    """
    value = event.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        code = "missing_required_parameter" if value is None else "invalid_type"
        raise invalid(f"{name}: must be {words}", name, code)
    return value


def error_of(error: ApiError, event_id: str | None = None) -> dict[str, Any]:
    """Return an error as it is in an event. ``event_id``: the client's name of the event that it is about."""
    body = error.body["error"]
    return {**{name: body[name] for name in ("type", "code", "message", "param")}, "event_id": event_id}


def error_event(error: ApiError) -> dict[str, Any]:
    """Return the event that ends a session."""
    return {"type": "error", "event_id": new_id("event"), "error": error_of(error)}
