"""A realtime session without IO: events of the client, pieces of replies and a clock come in, actions go out.

One response is in progress at a time. A user who begins to speak interrupts it, and then also what has been made but cannot have been
played yet is taken as not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field
from pydantic import ValidationError

from omni_core.api import Word
from omni_serve.encoders import Samples
from omni_serve.errors import ApiError, api_error, invalid
from omni_serve.ignored import collect
from omni_serve.realtime import beta
from omni_serve.realtime.actions import Abort, Action, Send, Show, Start
from omni_serve.realtime.asked import check_item, read_response
from omni_serve.realtime.audio import INPUT_RATE, from_base64, wav
from omni_serve.realtime.config import Offer, SessionConfig, applied
from omni_serve.realtime.conversation import Conversation
from omni_serve.realtime.events import error_of, id_of, kind_of, new_id, value_of
from omni_serve.realtime.frames import FrameBuffer, receive_frame
from omni_serve.realtime.input_turns import InputTurns, TurnBegun, TurnEnded, TurnSound
from omni_serve.realtime.items import Item, read_item, turn
from omni_serve.realtime.reply import Reply, Status
from omni_serve.realtime.transcripts import Step, Transcripts
from omni_serve.realtime.vad import Detector, EnergyDetector
from omni_serve.room import Room
from omni_serve.settings import RealtimeLimits
from omni_serve.tool_formats import tool_reader


@define(eq=False)
class Session:
    """One session. Every public method returns what is to be done, in order."""

    offer: Offer = field(factory=Offer)
    config: SessionConfig = field()
    limits: RealtimeLimits = field(factory=RealtimeLimits)
    detector: Callable[[], Detector] = EnergyDetector
    expires_at: int | None = None
    key: str = ""
    memory: Room = field(factory=lambda: Room(2**31))
    ids: Callable[[str], str] = new_id
    identity: str = field(init=False)
    conversation: Conversation = field(init=False)
    frames: FrameBuffer = field(init=False)
    reply: Reply | None = field(default=None, init=False)
    _conversation_id: str = field(init=False)
    _heard: InputTurns = field(init=False)
    _transcripts: Transcripts = field(init=False)
    _turn: str = field(default="", init=False)
    _wanted: bool = field(default=False, init=False)
    _spoken: Reply | None = field(default=None, init=False)
    _actions: list[Action] = field(factory=list, init=False)
    _items_size: int = field(default=0, init=False)
    _kept: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.identity, self._conversation_id = self.ids("sess"), self.ids("conv")
        self.conversation = Conversation(int(self.limits.history_mib * 2**20), self.limits.items, self.limits.frames)
        self.frames, is_live = FrameBuffer.of(self.limits), self.offer.listens
        self._heard = InputTurns(self.config.audio.input, self.limits.turn_seconds, self.detector, self.frames, is_live)
        self._transcripts = Transcripts(self.conversation, self.limits, is_live)

    @property
    def buffered(self) -> float:
        """Seconds of sound in the input buffer."""
        return self._heard.seconds

    @property
    def speaking(self) -> bool:
        """Return if the user speaks."""
        return self._heard.speaking

    @config.default
    def _first_config(self) -> SessionConfig:
        return self.offer.first()

    def begin(self) -> list[Action]:
        """Greet the client."""
        self._send("session.created", session=self.shown())
        return self._take()

    def receive(self, event: Mapping[str, Any], now: float) -> list[Action]:
        """Take an event of the client. What is wrong with it is answered by an ``error`` event, and the first event that answers it has
        its ignored fields as ``x_omni_ignored``.

        Images, which are checked before, have bytes in place of their URL; recordings may have bytes in place of base64.
        """
        ignored = collect()
        try:
            self._receive(event, now)
        except (ApiError, ValidationError) as error:
            return self.refuse(api_error(error), id_of(event))
        if ignored and self._actions and isinstance(first := self._actions[0], Send):
            first.event["x_omni_ignored"] = list(ignored)
        return self._take()

    def refuse(self, error: ApiError, event_id: str | None = None) -> list[Action]:
        """Tell the client of an error."""
        self._send("error", error=error_of(error, event_id))
        return self._take()

    def close(self) -> None:
        """End the session: it keeps nothing any more."""
        self.memory.add(self.key, -self._kept)
        self._kept = 0

    def text(self, reply: str, text: str) -> list[Action]:
        """Take a piece of a reply's text."""
        if self.reply is not None and self.reply.id == reply:
            self._do(self.reply.text(text))
        return self._take()

    def sound(self, reply: str, samples: Samples, rate: int, now: float, words: Sequence[Word] = ()) -> list[Action]:
        """Take a piece of a reply's speech, and the words that end in it or before it."""
        if self.reply is not None and self.reply.id == reply:
            self._do(self.reply.sound(samples, rate, now, words))
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
            is_inside = self.reply.conversation_id is not None
            # Else all turns to come fail, too.
            if error.status == 413 and is_inside and self.conversation.forget_frames():
                self._do(self.frames.tell("room"))
            details = {"type": error.body["error"]["type"], "code": error.code, "message": error.message}
            self._end("failed", now, error=details)
        return self._take()

    def said(self, item: str, text: str, guess: str = "") -> list[Action]:
        """Take words of a transcript; ``guess``: those that may follow, and may still change."""
        self._do(self._transcripts.said(item, text, guess))
        if item == self._turn:
            self._heard.said(self._transcripts.text(item) + guess)
        return self._take()

    def taken(self, item: str, count: int) -> list[Action]:
        """Take in that a recogniser has taken samples of a turn."""
        self._transcripts.taken(item, count)
        return self._take()

    def transcribed(self, item: str, text: str | ApiError, usage: Mapping[str, int]) -> list[Action]:
        """Take the transcript of a turn, or why there is none."""
        self._do(self._transcripts.written(item, text, usage))
        self._answer()
        return self._take()

    def _receive(self, event: Mapping[str, Any], now: float) -> None:
        kind = kind_of(event)
        if kind == "session.update":
            self._update(value_of(event, "session", Mapping, "an object"), id_of(event))
        elif kind == "transcription_session.update":
            patch = beta.read_transcription(value_of(event, "session", Mapping, "an object"))
            self._update(patch, id_of(event), "transcription_session.updated")
        elif kind == "input_audio_buffer.append":
            self._append(from_base64(value_of(event, "audio", str, "base64"), "audio"), now)
        elif kind == "input_audio_buffer.commit":
            self._commit(self._heard.commit())
        elif kind == "input_audio_buffer.clear":
            self._clear()
        elif kind.startswith("input_image_buffer."):
            self._do(receive_frame(event, self.frames, self.config, self.offer, now, self._check_memory))
        elif kind == "conversation.item.create":
            self._create_item(event)
        elif kind == "conversation.item.retrieve":
            item = self.conversation.find(event.get("item_id"))
            self._actions.append(Show(item, self.config.audio.input.format.wire))
        elif kind == "conversation.item.delete":
            self._delete(self.conversation.find(event.get("item_id")))
        elif kind == "conversation.item.truncate":
            self._truncate(event)
        elif kind == "response.create":
            given = event.get("response")
            self._respond(value_of(event, "response", Mapping, "an object") if given is not None else {})
        else:
            self._cancel(event.get("response_id"), now)

    def _update(self, patch: Mapping[str, Any], event_id: str | None, answer: str = "session.updated") -> None:
        kind = patch.get("type")
        if kind not in ("realtime", "transcription"):
            code = "missing_required_parameter" if kind is None else "unsupported_value"
            raise invalid(
                f"session.type: must be 'realtime' or 'transcription', is {'missing' if kind is None else repr(kind)[:80]}",
                "session.type",
                code,
            )
        config, errors = applied(self.config, patch, self.offer)
        if errors and config == self.config:
            raise errors[0]
        before, self.config = self.config.audio.input, config
        if self._heard.configure(config.audio.input):
            self._turn = ""
        if not self._turn or config.audio.input.transcription != before.transcription:
            self._do(self._transcripts.drop())
        is_beta = answer.startswith("transcription") and self.config.transcribes_only
        self._send(answer, session=beta.shown_transcription(self.shown()) if is_beta else self.shown())
        for error in errors:
            self._send("error", error=error_of(error, event_id))

    def _create_item(self, event: Mapping[str, Any]) -> None:
        previous = event.get("previous_item_id")
        if previous is not None and not isinstance(previous, str):
            raise invalid("previous_item_id: must be text", "previous_item_id", "invalid_type")
        wire, most = self.config.audio.input.format.wire, self.conversation.most_bytes
        item = read_item(event.get("item"), self.ids("item"), wire, most)
        check_item(item, self.offer, most)
        self._check_memory(item.size)
        self.conversation.check_room(item, "item")
        self._add(item, previous)

    def _delete(self, item: Item) -> None:
        if self.reply is not None and item in self.reply.output:
            raise invalid("item_id: the item is still being made; send response.cancel first", "item_id", "item_busy")
        self.conversation.remove(item)
        self._items_size = self.conversation.size
        self._send("conversation.item.deleted", item_id=item.id)

    def _truncate(self, event: Mapping[str, Any]) -> None:
        item = self.conversation.find(event.get("item_id"))
        index = value_of(event, "content_index", int, "a whole number")
        end = value_of(event, "audio_end_ms", int, "a whole number")
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
        self._interrupt("client_cancelled", now)

    def _append(self, data: bytes, now: float) -> None:
        if self.offer.inputs and "audio" not in self.offer.inputs:
            raise invalid("audio: this pipeline takes no sound", "audio", "unsupported_value")
        vad = self.config.audio.input.turn_detection
        self._check_memory(int(self.config.audio.input.format.wire.milliseconds(len(data)) * INPUT_RATE * 4 / 1000))
        for each in self._heard.append(data):
            if isinstance(each, TurnBegun):
                self._turn = self.ids("item")
                self._send("input_audio_buffer.speech_started", audio_start_ms=each.start_ms, item_id=self._turn)
                if vad is not None and vad.interrupt_response and not self.config.transcribes_only:
                    self._interrupt("turn_detected", now)
            elif isinstance(each, TurnSound):
                self._turn = self._turn or self.ids("item")
                assert self.config.audio.input.transcription is not None
                self._do(self._transcripts.hear(self._turn, each.samples, self.config.audio.input.transcription))
            else:
                self._send("input_audio_buffer.speech_stopped", audio_end_ms=each.end_ms, item_id=self._turn)
                self._commit(each)
                if vad is not None and vad.create_response and not self.config.transcribes_only:
                    self._wanted = True  # a reply that was not to be interrupted comes to its end first
                    self._answer()

    def _commit(self, ended: TurnEnded) -> None:
        identity, self._turn = self._turn or self.ids("item"), ""
        item = turn(identity, wav(ended.samples), ended.frames, self.offer)
        last = self.conversation.items[-1].id if self.conversation.items else None
        self._send("input_audio_buffer.committed", previous_item_id=last, item_id=identity)
        self._add(item)
        self._do(self._transcripts.end(item, ended.rest, self.config.audio.input.transcription))

    def _clear(self) -> None:
        self._heard.clear()
        self._do(self._transcripts.drop())
        self._turn = ""
        self._send("input_audio_buffer.cleared")

    def _respond(self, given: Mapping[str, Any]) -> None:
        if self.config.transcribes_only:
            raise invalid("type: this session only transcribes; it makes no responses", "type", "unsupported_event")
        if self.reply is not None:
            raise invalid(
                f"Conversation already has an active response in progress: {self.reply.id}. Wait until the response is finished "
                "before creating a new one.",
                None,
                "conversation_already_has_active_response",
            )
        asked = read_response(given, self.config, self.offer, self.conversation, self.ids)
        config = asked.config
        use_tools = config.tools and config.tool_choice != "none" and self.offer.tools is not None
        self.reply = Reply(
            self.ids("resp"),
            config,
            self.ids,
            None if asked.outside else self._adopt,
            None if asked.outside else self._conversation_id,
            asked.metadata,
            tool_reader(self.offer.tools or "", [tool.of_chat for tool in config.tools]) if use_tools else None,
            1.0 if self.offer.paces else config.audio.output.speed,
        )
        self._wanted = False
        self._do(self.reply.created())
        self._actions.append(Start(self.reply.id, asked.messages, config))

    def _interrupt(self, reason: str, now: float) -> None:
        """End the reply in progress; what cannot have been played of the latest speech was not heard.

        Nor is a reply wanted any more to a turn before: who interrupts by speaking gets one to all of it.
        """
        self._wanted = False
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
        self._do(reply.end(status, reason, usage, error))
        self._spoken = reply if reply.first_sound is not None else self._spoken
        self._shorten()
        self._answer()

    def _answer(self) -> None:
        """Begin the reply that is wanted, if none is in progress. A reply that cannot begin is an ``error`` event, not an exception."""
        if not self._wanted or self.reply is not None or (self.offer.reads_transcripts and self._transcripts.pending):
            return
        self._wanted = False
        try:
            self._respond({})
        except ApiError as error:
            self._send("error", error=error_of(error))

    def _adopt(self, item: Item) -> str | None:
        return self.conversation.add(item)

    def _add(self, item: Item, previous: str | None = None) -> None:
        before = self.conversation.add(item, previous)
        self._send("conversation.item.added", previous_item_id=before, item=item.shown())
        self._send("conversation.item.done", previous_item_id=before, item=item.shown())
        self._shorten()

    def _shorten(self) -> None:
        keep = {item.id for item in self.reply.output} if self.reply is not None else set()
        for item in self.conversation.shorten(keep):
            self._send("conversation.item.deleted", item_id=item.id)
        self._items_size = self.conversation.size

    def _check_memory(self, size: int) -> None:
        """Raise ApiError 429 if the sessions of the server, or of the key, keep as much as they may."""
        if not self.memory.has(self.key, size):
            text = "The sessions of this key, or of the server, keep as much as they may together (memory_mib)."
            raise ApiError(429, text, code="overloaded", retry_after=5)

    def shown(self) -> dict[str, Any]:
        """Return the session as clients see it."""
        kind = "realtime.transcription_session" if self.config.transcribes_only else "realtime.session"
        return {"id": self.identity, "object": kind, **self.config.shown(), "expires_at": self.expires_at}

    def _do(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, dict):
                self._send(**step)
            else:
                self._actions.append(step)

    def _send(self, type: str, **fields: Any) -> None:
        self._actions.append(Send({"type": type, "event_id": self.ids("event"), **fields}))

    def _take(self) -> list[Action]:
        before, self._kept = self._kept, self._items_size + self._heard.size + 4 * self._transcripts.waiting
        if before != self._kept:
            self.memory.add(self.key, self._kept - before)
        taken, self._actions = self._actions, []
        return taken
