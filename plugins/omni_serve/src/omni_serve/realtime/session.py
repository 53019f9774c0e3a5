"""A realtime session without IO: events of the client, pieces of replies and a clock come in, actions go out.

One response is in progress at a time. A user who begins to speak interrupts it, and then also what has been made but cannot have been
played yet is taken as not heard.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field, frozen
from pydantic import ValidationError

from omni_core.errors import did_you_mean
from omni_serve.encoders import Samples
from omni_serve.errors import ApiError, api_error, invalid
from omni_serve.realtime.audio import INPUT_RATE, InputAudio, from_base64, wav
from omni_serve.realtime.buffer import InputBuffer
from omni_serve.realtime.config import Offer, ServerVad, SessionConfig, updated
from omni_serve.realtime.conversation import Conversation
from omni_serve.realtime.items import Item, Part, messages_of, read_item
from omni_serve.realtime.reply import Event, Reply, Status
from omni_serve.realtime.vad import Detector, EnergyDetector, TurnDetector
from omni_serve.settings import RealtimeLimits
from omni_serve.tool_formats import tool_reader


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
    """Nobody wants the rest of a reply."""

    reply: str


@frozen
class Transcribe:
    """Write a recording down."""

    item: str
    recording: bytes
    language: str | None
    prompt: str | None


Action = Send | Start | Abort | Transcribe

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

_CHANGES = ("output_modalities", "instructions", "audio", "tools", "tool_choice", "max_output_tokens")
_OWN = ("conversation", "input", "metadata")


def new_id(prefix: str) -> str:
    """Return an identifier."""
    return f"{prefix}_{secrets.token_hex(10)}"


@define(eq=False)
class Session:
    """One session. Every public method returns what is to be done, in order."""

    offer: Offer = field(factory=Offer)
    config: SessionConfig = field()
    limits: RealtimeLimits = field(factory=RealtimeLimits)
    detector: Callable[[], Detector] = EnergyDetector
    expires_at: int | None = None
    ids: Callable[[str], str] = new_id
    identity: str = field(init=False)
    conversation: Conversation = field(init=False)
    reply: Reply | None = field(default=None, init=False)
    _conversation_id: str = field(init=False)
    _buffer: InputBuffer = field(factory=InputBuffer, init=False)
    _sound: InputAudio = field(init=False)
    _turns: TurnDetector | None = field(default=None, init=False)
    _turn: str = field(default="", init=False)
    _wanted: bool = field(default=False, init=False)
    _spoken: Reply | None = field(default=None, init=False)
    _actions: list[Action] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.identity, self._conversation_id = self.ids("sess"), self.ids("conv")
        self.conversation = Conversation(int(self.limits.history_mib * 2**20), self.limits.items)
        self._sound = InputAudio(self.config.audio.input.format.wire)
        self._detect()

    @property
    def buffered(self) -> float:
        """Seconds of sound in the input buffer."""
        return len(self._buffer) / INPUT_RATE

    @property
    def speaking(self) -> bool:
        """Return if the user speaks."""
        return self._turns is not None and self._turns.speaking

    @config.default
    def _first_config(self) -> SessionConfig:
        return self.offer.first()

    # --- events in --------------------------------------------------------------------------------------------------
    def begin(self) -> list[Action]:
        """Greet the client."""
        self._send("session.created", session=self.shown())
        return self._take()

    def receive(self, event: Mapping[str, Any], now: float, media: Mapping[int, bytes] | None = None) -> list[Action]:
        """Take an event of the client. What is wrong with it is answered by an ``error`` event.

        Args:
            media: the images of an item that is created, by the index of their content part.
        """
        try:
            self._receive(event, now, media or {})
        except (ApiError, ValidationError) as error:
            return self.refuse(api_error(error), event.get("event_id"))
        return self._take()

    def refuse(self, error: ApiError, event_id: Any = None) -> list[Action]:
        """Tell the client of an error."""
        self._send("error", error=error_of(error, event_id))
        return self._take()

    def text(self, reply: str, text: str) -> list[Action]:
        """Take a piece of a reply's text."""
        if self.reply is not None and self.reply.id == reply:
            self._send_all(self.reply.text(text))
        return self._take()

    def sound(self, reply: str, samples: Samples, rate: int, now: float) -> list[Action]:
        """Take a piece of a reply's speech."""
        if self.reply is not None and self.reply.id == reply:
            self._send_all(self.reply.sound(samples, rate, now))
        return self._take()

    def finished(self, reply: str, now: float, usage: Mapping[str, int], reason: str = "stop") -> list[Action]:
        """Take the end of a reply."""
        if self.reply is not None and self.reply.id == reply:
            cut = reason == "length"
            self._end("incomplete" if cut else "completed", now, "max_output_tokens" if cut else None, usage)
        return self._take()

    def failed(self, reply: str, now: float, error: ApiError) -> list[Action]:
        """Take the failure of a reply."""
        if self.reply is not None and self.reply.id == reply:
            details = {"type": error.body["error"]["type"], "code": error.code, "message": error.message}
            self._end("failed", now, error=details)
        return self._take()

    def transcribed(self, item: str, text: str | ApiError, usage: Mapping[str, int]) -> list[Action]:
        """Take the transcript of a recording, or why there is none."""
        found = next((each for each in self.conversation.items if each.id == item), None)
        kind = "conversation.item.input_audio_transcription"
        if found is not None and isinstance(text, str):
            found.content[0].text = text
            given, taken = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
            tokens = {"input_tokens": given, "output_tokens": taken, "total_tokens": given + taken}
            self._send(
                f"{kind}.completed", item_id=item, content_index=0, transcript=text, usage={"type": "tokens", **tokens}
            )
        elif found is not None:
            assert isinstance(text, ApiError)
            error = error_of(text)
            self._send(f"{kind}.failed", item_id=item, content_index=0, error=error)
        return self._take()

    # --- the client's events ----------------------------------------------------------------------------------------
    def _receive(self, event: Mapping[str, Any], now: float, media: Mapping[int, bytes]) -> None:
        kind = event.get("type")
        if kind in ELSEWHERE:
            raise invalid(f"type: {kind} {ELSEWHERE[kind]}", "type", "unsupported_event")
        if not isinstance(kind, str) or kind not in EVENTS:
            raise invalid(
                f"type: no event is called {kind!r:.80}{did_you_mean(str(kind), EVENTS)}", "type", "unknown_event"
            )
        for name in event:
            if name not in ("type", "event_id", *EVENTS[kind]):
                known = did_you_mean(name, EVENTS[kind])
                raise invalid(f"{name}: {kind} has no such field{known}", name, "unknown_parameter")
        if kind == "session.update":
            self._update(_of_kind(event, "session", Mapping, "an object"))
        elif kind == "input_audio_buffer.append":
            self._append(from_base64(_of_kind(event, "audio", str, "base64"), "audio"), now)
        elif kind == "input_audio_buffer.commit":
            self._commit_by_hand()
        elif kind == "input_audio_buffer.clear":
            self._clear()
        elif kind == "conversation.item.create":
            self._create_item(event, media)
        elif kind == "conversation.item.retrieve":
            item = self.conversation.find(event.get("item_id"))
            self._send("conversation.item.retrieved", item=item.shown(self.config.audio.input.format.wire))
        elif kind == "conversation.item.delete":
            self._delete(self.conversation.find(event.get("item_id")))
        elif kind == "conversation.item.truncate":
            self._truncate(event)
        elif kind == "response.create":
            given = event.get("response")
            self._respond(_of_kind(event, "response", Mapping, "an object") if given is not None else {})
        else:
            self._cancel(event.get("response_id"), now)

    def _update(self, patch: Mapping[str, Any]) -> None:
        kind = patch.get("type")
        if kind != "realtime":
            code = "missing_required_parameter" if kind is None else "unsupported_value"
            hint = ": sessions that only transcribe are not offered here" if kind == "transcription" else ""
            raise invalid(
                f"session.type: must be 'realtime', is {'missing' if kind is None else repr(kind)[:80]}{hint}",
                "session.type",
                code,
            )
        old, self.config = self.config.audio.input, updated(self.config, patch, self.offer)
        new = self.config.audio.input
        if new.format != old.format:
            self._buffer.add(self._sound.flush())
            self._sound = InputAudio(new.format.wire)
        if new.turn_detection != old.turn_detection:
            self._turn = ""
            self._detect()
        self._send("session.updated", session=self.shown())

    def _create_item(self, event: Mapping[str, Any], media: Mapping[int, bytes]) -> None:
        previous = event.get("previous_item_id")
        if previous is not None and not isinstance(previous, str):
            raise invalid("previous_item_id: must be text", "previous_item_id", "invalid_type")
        item = read_item(event.get("item"), self.ids("item"), self.config.audio.input.format.wire, media)
        self._check_item(item)
        self.conversation.check_room(item, "item")
        self._add(item, previous)

    def _check_item(self, item: Item, where: str = "item") -> None:
        takes = self.offer.inputs
        for index, part in enumerate(item.content):
            medium = {"input_audio": "audio", "input_image": "image"}.get(part.type)
            if medium is not None and takes and medium not in takes:
                path = f"{where}.content[{index}]"
                raise invalid(f"{path}: this pipeline takes no {medium}", path, "unsupported_value")
        if item.type != "message" and self.offer.tools is None:
            raise invalid(f"{where}.type: this pipeline calls no tools", f"{where}.type", "unsupported_value")
        if item.size > self.conversation.most_bytes:
            raise ApiError(
                413,
                f"{where}: is over the limit of {self.limits.history_mib:g} MiB",
                param=where,
                code="item_too_large",
            )

    def _delete(self, item: Item) -> None:
        if self.reply is not None and item in self.reply.output:
            raise invalid("item_id: the item is still being made; send response.cancel first", "item_id", "item_busy")
        self.conversation.remove(item)
        self._send("conversation.item.deleted", item_id=item.id)

    def _truncate(self, event: Mapping[str, Any]) -> None:
        item = self.conversation.find(event.get("item_id"))
        index = _of_kind(event, "content_index", int, "a whole number")
        end = _of_kind(event, "audio_end_ms", int, "a whole number")
        if item.role != "assistant":
            raise invalid("item_id: only speech of the assistant can be truncated", "item_id", "invalid_value")
        if not 0 <= index < len(item.content) or item.content[index].type != "output_audio":
            raise invalid("content_index: there is no speech at it", "content_index", "invalid_value")
        part = item.content[index]
        if not 0 <= end <= part.audio_ms + 1:
            raise invalid(
                f"audio_end_ms: must be 0 to {part.audio_ms:.0f}, the length of the speech, is {end}",
                "audio_end_ms",
                "invalid_value",
            )
        part.heard_ms = end
        self._send("conversation.item.truncated", item_id=item.id, content_index=index, audio_end_ms=end)

    def _cancel(self, identity: Any, now: float) -> None:
        if self.reply is None or identity not in (None, self.reply.id):
            raise invalid("Cancellation failed: no such response is in progress", None, "response_cancel_not_active")
        self._wanted = False
        self._interrupt("client_cancelled", now)

    # --- sound in ---------------------------------------------------------------------------------------------------
    def _detect(self) -> None:
        vad = self.config.audio.input.turn_detection
        self._turns = None
        if vad is not None:
            at = self._buffer.end
            self._turns = TurnDetector(self.detector(), vad.threshold, vad.silence_duration_ms, at=at)

    def _append(self, data: bytes, now: float) -> None:
        if self.offer.inputs and "audio" not in self.offer.inputs:
            raise invalid("audio: this pipeline takes no sound", "audio", "unsupported_value")
        vad, most = self.config.audio.input.turn_detection, int(self.limits.turn_seconds * INPUT_RATE)
        if vad is None or self._turns is None:
            if len(self._buffer) >= most:
                raise ApiError(
                    413,
                    f"audio: a turn may have {self.limits.turn_seconds:g} s; commit it or clear the buffer",
                    param="audio",
                    code="input_audio_buffer_full",
                )
            self._buffer.add(self._sound.write(data)[:most])
            return
        samples = self._sound.write(data)
        # In pieces, so that several turns may come in one event and the buffer stays small.
        for start in range(0, len(samples), INPUT_RATE):
            piece = samples[start : start + INPUT_RATE]
            self._buffer.add(piece)
            for border in self._turns.feed(piece):
                if border.kind == "started":
                    self._speech_started(border.at, vad, now)
                else:
                    self._speech_stopped(border.at, vad)
            if not self._turns.speaking:
                self._buffer.drop(self._turns.at - _samples(vad.prefix_padding_ms + 500))
            elif len(self._buffer) >= most:
                self._turns.stop()
                self._speech_stopped(self._buffer.end, vad)

    def _speech_started(self, at: int, vad: ServerVad, now: float) -> None:
        self._buffer.drop(at - _samples(vad.prefix_padding_ms))
        self._turn = self.ids("item")
        self._send("input_audio_buffer.speech_started", audio_start_ms=_ms(self._buffer.start), item_id=self._turn)
        if vad.interrupt_response:
            self._interrupt("turn_detected", now)

    def _speech_stopped(self, at: int, vad: ServerVad) -> None:
        self._send("input_audio_buffer.speech_stopped", audio_end_ms=_ms(at), item_id=self._turn)
        self._commit(self._buffer.take(at))
        if vad.create_response:
            if self.reply is None:
                self._respond({})
            else:
                self._wanted = True  # the reply that was not to be interrupted comes to its end first

    def _commit_by_hand(self) -> None:
        self._buffer.add(self._sound.flush())
        if len(self._buffer) < INPUT_RATE // 10:
            raise invalid(
                f"Error committing input audio buffer: buffer too small. Expected at least 100ms of audio, but buffer only "
                f"has {self.buffered * 1000:.0f}ms of audio.",
                None,
                "input_audio_buffer_commit_empty",
            )
        if self._turns is not None:
            self._turns.stop()
        self._commit(self._buffer.take())

    def _commit(self, samples: Samples) -> None:
        identity, self._turn = self._turn or self.ids("item"), ""
        item = Item(identity, "message", "user", content=[Part("input_audio", data=wav(samples))])
        last = self.conversation.items[-1].id if self.conversation.items else None
        self._send("input_audio_buffer.committed", previous_item_id=last, item_id=identity)
        self._add(item)
        wanted = self.config.audio.input.transcription
        if wanted is not None:
            self._actions.append(Transcribe(identity, item.content[0].data, wanted.language, wanted.prompt))

    def _clear(self) -> None:
        self._sound.flush()
        self._buffer.take()
        self._turn = ""
        if self._turns is not None:
            self._turns.stop()
        self._send("input_audio_buffer.cleared")

    # --- responses --------------------------------------------------------------------------------------------------
    def _respond(self, given: Mapping[str, Any]) -> None:
        if self.reply is not None:
            raise invalid(
                f"Conversation already has an active response in progress: {self.reply.id}. Wait until the response is finished "
                "before creating a new one.",
                None,
                "conversation_already_has_active_response",
            )
        changes = {name: value for name, value in given.items() if name not in _OWN and value is not None}
        for name in changes:
            if name in SessionConfig.model_fields and name not in _CHANGES:
                raise invalid(f"response.{name}: belongs to the session", f"response.{name}", "unknown_parameter")
        config = updated(self.config, changes, self.offer, "response") if changes else self.config
        outside = given.get("conversation") or "auto"
        if outside not in ("auto", "none"):
            raise invalid("response.conversation: must be 'auto' or 'none'", "response.conversation", "invalid_value")
        metadata = given.get("metadata")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise invalid("response.metadata: must be an object", "response.metadata", "invalid_type")
        items = self._input(given["input"]) if given.get("input") is not None else list(self.conversation.items)
        messages = messages_of(items, config.instructions)
        if not any(message["role"] != "system" for message in messages):
            raise invalid("There is nothing to respond to: the conversation is empty.", None, "conversation_empty")
        use_tools = config.tools and config.tool_choice != "none" and self.offer.tools is not None
        self.reply = Reply(
            self.ids("resp"),
            config,
            self.ids,
            self._adopt if outside == "auto" else None,
            self._conversation_id if outside == "auto" else None,
            metadata,
            tool_reader(self.offer.tools or "") if use_tools else None,
        )
        self._wanted = False
        self._send_all(self.reply.created())
        self._actions.append(Start(self.reply.id, messages, config))

    def _input(self, given: Any) -> list[Item]:
        """Return the items of a response that has a context of its own."""
        if not isinstance(given, list):
            raise invalid("response.input: must be a list of items", "response.input", "invalid_type")
        items = []
        for index, each in enumerate(given):
            where = f"response.input[{index}]"
            if isinstance(each, Mapping) and each.get("type") == "item_reference":
                items.append(self.conversation.find(each.get("id"), f"{where}.id"))
                continue
            item = read_item(each, self.ids("item"), self.config.audio.input.format.wire, {}, where)
            self._check_item(item, where)
            items.append(item)
        return items

    def _interrupt(self, reason: str, now: float) -> None:
        """End the reply in progress; what cannot have been played of the latest speech was not heard."""
        spoken = self.reply or self._spoken
        if spoken is not None and spoken.item is not None and spoken.first_sound is not None:
            part = spoken.item.content[0]
            played = (now - spoken.first_sound) * 1000
            if played < part.audio_ms and part.heard_ms is None:
                part.heard_ms = played
        if self.reply is not None:
            self._actions.append(Abort(self.reply.id))
            self._end("cancelled", now, reason)

    def _end(
        self,
        status: Status,
        now: float,
        reason: str | None = None,
        usage: Mapping[str, int] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        assert self.reply is not None
        reply, self.reply = self.reply, None
        self._send_all(reply.end(status, reason, usage, error))
        self._spoken = reply if reply.first_sound is not None else self._spoken
        self._shorten()
        if self._wanted and self.conversation.items:
            self._respond({})

    def _adopt(self, item: Item) -> str | None:
        return self.conversation.add(item)

    # --- the conversation -------------------------------------------------------------------------------------------
    def _add(self, item: Item, previous: str | None = None) -> None:
        before = self.conversation.add(item, previous)
        self._send("conversation.item.added", previous_item_id=before, item=item.shown())
        self._send("conversation.item.done", previous_item_id=before, item=item.shown())
        self._shorten()

    def _shorten(self) -> None:
        keep = {item.id for item in self.reply.output} if self.reply is not None else set()
        for item in self.conversation.shorten(keep):
            self._send("conversation.item.deleted", item_id=item.id)

    # --- events out -------------------------------------------------------------------------------------------------
    def shown(self) -> dict[str, Any]:
        """Return the session as clients see it."""
        made = {"id": self.identity, "object": "realtime.session", **self.config.shown()}
        return {**made, "expires_at": self.expires_at}

    def _send_all(self, events: list[Event]) -> None:
        for event in events:
            self._send(**event)

    def _send(self, type: str, **fields: Any) -> None:
        self._actions.append(Send({"type": type, "event_id": self.ids("event"), **fields}))

    def _take(self) -> list[Action]:
        taken, self._actions = self._actions, []
        return taken


def error_of(error: ApiError, event_id: Any = None) -> dict[str, Any]:
    """Return an error as it is in an event."""
    body = error.body["error"]
    made = {name: body[name] for name in ("type", "code", "message", "param")}
    return {**made, "event_id": event_id if isinstance(event_id, str) else None}


def _of_kind(event: Mapping[str, Any], name: str, kind: type[Any], words: str) -> Any:
    value = event.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        code = "missing_required_parameter" if value is None else "invalid_type"
        raise invalid(f"{name}: must be {words}", name, code)
    return value


def _samples(milliseconds: int) -> int:
    return milliseconds * INPUT_RATE // 1000


def _ms(samples: int) -> int:
    return max(0, samples) * 1000 // INPUT_RATE
