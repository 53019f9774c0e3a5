"""A session of OpenAI's Live API, as turns: its events become those of a :class:`~omni_serve.realtime.session.Session`, and back.

In this API nothing marks a turn: sound flows as it is to be played. So speech is sent at the pace at which it is heard, and no more
of it comes when the user begins to speak.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import define, field
from pydantic import Field, ValidationError

from omni_core.api import did_you_mean, shown
from omni_serve.errors import ApiError, api_error, invalid
from omni_serve.ignored import check_fields, collect
from omni_serve.realtime.actions import Action
from omni_serve.realtime.config import (
    PCM,
    AudioInput,
    AudioOutput,
    Fields,
    Format,
    Offer,
    SessionConfig,
    Transcription,
    check_names,
)
from omni_serve.realtime.config import Audio as SessionAudio
from omni_serve.realtime.events import check_event_id, error_of, id_of, new_id
from omni_serve.realtime.reply import Event
from omni_serve.realtime.session import Session

_CHARACTER_MS = 65

EVENTS: dict[str, tuple[str, ...]] = {
    "session.input_audio.append": ("audio",),
    "session.input_audio.mute": (),
    "session.input_audio.unmute": (),
    "session.instructions.append": ("content",),
    "session.close": (),
}
"""The client's events after ``session.start``, and their fields."""

_ELSEWHERE = frozenset(
    {
        "session.update",
        "session.thinking.append",
        "session.commentary.append",
        "response.create",
        "response.item.create",
        "decision.create",
        "decision.item.create",
        "decision.item.delete",
    }
)


class LiveOutput(Fields):
    """The voice of speech."""

    voice: str | dict[str, Any] | None = None


class LiveAudio(Fields):
    """One format, for both directions."""

    format: Format = PCM
    output: LiveOutput = LiveOutput()


class LiveText(Fields):
    """A text in an earlier message."""

    type: Literal["input_text", "output_text", "text"] = "input_text"
    text: str


class LiveItem(Fields):
    """An earlier message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["developer", "system", "user", "assistant"]
    content: list[LiveText] = Field(min_length=1, fail_fast=True)
    id: str | None = None
    status: Literal["incomplete", "completed"] | None = None


class LiveDelegation(Fields):
    """The client would do the work that a model hands over. No model here hands any over, so there is nothing to do for it."""

    type: Literal["client"]


class LiveStart(Fields):
    """The session that a client asks for. What this server does not do can only be left out."""

    model: str
    instructions: str | None = None
    audio: LiveAudio = LiveAudio()
    input: list[LiveItem] | None = Field(None, fail_fast=True)
    store: Literal[False] | None = None
    delegation: LiveDelegation | None = None
    triggers: list[Any] | None = Field(default=None, max_length=0)
    client: None = None
    safety_identifier: str | None = None


@define(eq=False)
class Live:
    """One session. Made by :meth:`start`; ``now`` is the session's clock, in seconds."""

    session: Session
    asked: LiveStart
    began: float
    expires_at: int
    muted: bool = False
    ignored: list[str] = field(factory=list)
    _spans: dict[str, list[int]] = field(factory=dict, init=False)
    _said: dict[str, str] = field(factory=dict, init=False)

    @classmethod
    def start(cls, event: Mapping[str, Any], offer: Offer, make: Any, now: float, expires_at: int) -> Live:
        """Return the session that ``session.start`` asks for.

        Args:
            make: makes a :class:`Session` of a configuration.

        Raises:
            ApiError: 400, a field is not honoured.
        """
        ignored = collect()
        check_event_id(event)
        if event.get("type") != "session.start":
            raise invalid(f"type: the first event must be session.start, is {shown(event.get('type'))}", "type")
        try:
            if isinstance(session := event.get("session"), dict):
                check_names(session, LiveStart, "session")
            asked = LiveStart.model_validate(session)
        except ValidationError as error:
            made = api_error(error)
            path = ".".join(["session", *(str(each) for each in error.errors()[0]["loc"])])
            raise invalid(f"{path}: {made.message.partition(': ')[2]}", path, made.code) from None
        sound = asked.audio.format
        config = SessionConfig(
            model=asked.model,
            instructions=asked.instructions or "",
            audio=SessionAudio.model_construct(
                input=AudioInput.model_construct(
                    format=sound,
                    turn_detection=offer.vad,
                    transcription=Transcription() if offer.transcribes else None,
                ),
                output=AudioOutput.model_construct(format=sound, voice=asked.audio.output.voice, speed=1.0),
            ),
        )
        offer.verify(config, "session")
        live = cls(make(config), asked, now, expires_at, ignored=list(ignored))
        for item in asked.input or ():
            live._remember(item.role, [part.text for part in item.content], now)
        return live

    def started(self) -> Event:
        """Return the event that answers ``session.start``."""
        made = {"type": "session.started", "event_id": new_id("event"), "session": self.shown()}
        return made | ({"x_omni_ignored": self.ignored} if self.ignored else {})

    def shown(self) -> dict[str, Any]:
        """Return the session as clients see it."""
        return {
            "id": self.session.identity,
            "expires_at": self.expires_at,
            "model": self.asked.model,
            "status": "active",
            "instructions": self.asked.instructions,
            "audio": self.asked.audio.model_dump(),
        }

    def receive(self, event: Mapping[str, Any], now: float) -> tuple[list[Action], list[Event]]:
        """Take an event of the client; return what is to be done, and the events that answer it at once."""
        try:
            return self._receive(event, now)
        except ApiError as error:
            return [], [self._error(error_of(error), id_of(event))]

    def _receive(self, event: Mapping[str, Any], now: float) -> tuple[list[Action], list[Event]]:
        check_event_id(event)
        kind = event.get("type")
        if not isinstance(kind, str):
            raise invalid(f"type: must be the name of an event, is {kind!r:.80}", "type", "invalid_type")
        if kind in _ELSEWHERE:
            raise invalid(
                f"type: {kind} needs delegation, which this server does not have", "type", "unsupported_event"
            )
        if kind not in EVENTS:
            raise invalid(
                f"type: no event is called {shown(kind)}{did_you_mean(kind, EVENTS)}", "type", "unknown_event"
            )
        check_fields(event, ("type", "event_id", *EVENTS[kind]))
        if kind == "session.input_audio.append":
            if self.muted:
                return [], []
            return self.session.receive({**event, "type": "input_audio_buffer.append"}, now), []
        made: Event = {"event_id": new_id("event"), "client_event_id": id_of(event)}
        if kind in ("session.input_audio.mute", "session.input_audio.unmute"):
            self.muted = kind.endswith(".mute")
            return [], [{"type": f"{kind}d", **made}]
        if kind == "session.instructions.append":
            text = event.get("content")
            if not isinstance(text, str):
                raise invalid("content: must be text", "content", "invalid_type")
            self._remember("system", [text], now)
            at = self._ms(now)
            return [], [{"type": "session.instructions.appended", **made, "start_ms": at, "end_ms": at}]
        closed = {"type": "session.closed", **made, "reason": "close_requested", "session": self.shown()}
        return [], [{**closed, "usage": {"seconds": round(now - self.began, 3)}}]

    def translate(self, event: Event, now: float) -> Event | None:
        """Return the event of this API for one of the session; ``None``: it has none."""
        kind = event["type"]
        if kind == "input_audio_buffer.speech_started":
            self._spans[event["item_id"]] = [event["audio_start_ms"]]
        elif kind == "input_audio_buffer.speech_stopped":
            self._spans.setdefault(event["item_id"], [event["audio_end_ms"]]).append(event["audio_end_ms"])
        elif kind == "conversation.item.input_audio_transcription.delta" and event["delta"]:
            span = self._spans.setdefault(event["item_id"], [0])
            self._said[event["item_id"]] = self._said.get(event["item_id"], "") + event["delta"]
            return self._heard(event["delta"], span[0], span[1] if span[1:] else self._ms(now))
        elif kind == "conversation.item.input_audio_transcription.completed":
            span, said = self._spans.pop(event["item_id"], [0]), self._said.pop(event["item_id"], "")
            rest = event["transcript"][len(said) :] if event["transcript"].startswith(said) else ""
            return self._heard(rest, span[0], span[-1]) if rest or not said else None
        elif kind == "conversation.item.input_audio_transcription.failed":
            self._spans.pop(event["item_id"], None)
            self._said.pop(event["item_id"], None)
        elif kind == "response.output_audio_transcript.delta":
            start = self._ms(now)
            times = {"start_ms": start, "end_ms": start + _CHARACTER_MS * len(event["delta"])}
            return {"type": "session.output_transcript.delta", **self._id(), "delta": event["delta"], **times}
        elif kind == "response.done":
            error = (event["response"]["status_details"] or {}).get("error")
            if error is not None:
                return self._error({**error, "param": None}, None)
            usage = {"seconds": round(now - self.began, 3)}
            return {"type": "session.usage.updated", **self._id(), "usage": usage}
        elif kind == "error":
            return self._error(event["error"], event["error"].get("event_id"))
        return None

    def _heard(self, text: str, start: int, end: int) -> Event:
        times = {"start_ms": start, "end_ms": end}
        return {"type": "session.input_transcript.delta", **self._id(), "delta": text, **times}

    def _error(self, error: Mapping[str, Any], client_event: Any) -> Event:
        kept = {name: error.get(name) for name in ("type", "code", "message", "param")}
        kept["code"] = kept["code"] or "error"
        asked = client_event if isinstance(client_event, str) else None
        return {"type": "error", **self._id(), "error": {**kept, "client_event_id": asked}, "client_event_id": asked}

    def _remember(self, role: str, texts: list[str], now: float) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        role = "system" if role == "developer" else role
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}
        self.session.receive({"type": "conversation.item.create", "item": item}, now)

    def _ms(self, now: float) -> int:
        return int((now - self.began) * 1000)

    @staticmethod
    def _id() -> Event:
        return {"event_id": new_id("event")}
