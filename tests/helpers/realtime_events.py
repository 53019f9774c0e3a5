"""Events of clients of a realtime session, and what its actions say."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from omni_serve.encoders import Samples, pcm16
from omni_serve.realtime.actions import Action, Send, Show, Start
from omni_serve.realtime.config import Offer
from omni_serve.realtime.session import Session
from omni_serve.settings import RealtimeLimits

RATE = 24_000


def voice(seconds: float) -> Samples:
    """A tone with the pauses of words."""
    time = np.arange(int(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * 220 * time) * (time % 0.2 < 0.15)).astype(np.float32)


def silence(seconds: float) -> Samples:
    return np.zeros(int(seconds * RATE), np.float32)


def append(samples: Samples) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm16(samples)).decode()}


def user_text(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}}


def update(**fields: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "realtime", **fields}}


MANUAL = update(audio={"input": {"turn_detection": None}})


def make(offer: Offer | None = None, **limits: Any) -> Session:
    counts: dict[str, int] = {}

    def identity(prefix: str) -> str:
        counts[prefix] = counts.get(prefix, 0) + 1
        return f"{prefix}_{counts[prefix]}"

    session = Session(offer=offer or Offer(), limits=RealtimeLimits(**limits), ids=identity)
    session.begin()
    return session


def events(actions: list[Action]) -> list[dict[str, Any]]:
    found = [each for each in actions if isinstance(each, Send | Show)]
    return [each.event if isinstance(each, Send) else each.event("event_0") for each in found]


def kinds(actions: list[Action]) -> list[str]:
    return [event["type"] for event in events(actions)]


def started(actions: list[Action]) -> Start:
    return next(action for action in actions if isinstance(action, Start))


def refused(actions: list[Action]) -> dict[str, Any]:
    (event,) = events(actions)
    assert event["type"] == "error"
    error: dict[str, Any] = event["error"]
    return error
