"""One response while it is made: pieces of text and speech come in, events in the order of OpenAI's server go out."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from attrs import define, field

from omni_core.api import Word
from omni_serve.encoders import Encoder, Samples
from omni_serve.realtime.audio import output_audio
from omni_serve.realtime.config import SessionConfig
from omni_serve.realtime.items import Item, Part
from omni_serve.tool_formats import ToolCall, ToolReader
from omni_serve.usage import of_turn
from omni_serve.word_times import scaled, shown

Event = dict[str, Any]
Status = Literal["completed", "cancelled", "incomplete", "failed"]

PIECE_SECONDS = 0.5
"""The longest piece of speech in one event, so that a client that is interrupted has little to throw away."""


@define(eq=False)
class Reply:
    """A response in progress.

    Attributes:
        config: the session's, with the changes of ``response.create``.
        speed: that its sound is brought to; 1: the pipeline speaks at the speed that is asked for.
        adopt: adds an item to the conversation and returns the id before it; ``None``: the response is outside of it.
        first_sound: when its first sound was handed out, by the session's clock.
    """

    id: str
    config: SessionConfig
    new_id: Callable[[str], str]
    adopt: Callable[[Item], str | None] | None
    conversation_id: str | None
    metadata: Mapping[str, Any] | None = None
    reader: ToolReader | None = None
    speed: float = 1.0
    item: Item | None = None
    output: list[Item] = field(factory=list)
    first_sound: float | None = None
    _audio: Encoder | None = None
    _odd: bytes = b""

    def created(self) -> list[Event]:
        """Return the event that begins it."""
        return [{"type": "response.created", "response": self._shown("in_progress", None, None)}]

    def text(self, text: str) -> list[Event]:
        """Take a piece of text."""
        calls: list[ToolCall] = []
        if self.reader is not None:
            text, calls = self.reader.feed(text)
        return [*self._said(text), *(event for call in calls for event in self._call(call))]

    def sound(self, samples: Samples, rate: int, now: float, words: Sequence[Word] = ()) -> list[Event]:
        """Take a piece of speech, and the words that end in it or before it, with their times in the speech."""
        if not self.config.speaks:
            return []
        output = self.config.audio.output
        if self._audio is None:
            self._audio = output_audio(output.format.wire, rate, self.speed)
        events = self._begin()
        if self.first_sound is None and len(samples):
            self.first_sound = now
        step = max(1, int(rate * PIECE_SECONDS))
        for start in range(0, len(samples), step):
            piece = np.ascontiguousarray(samples[start : start + step], np.float32)
            events += self._heard(self._audio.write(piece))
        return [*events, *self._told(scaled(words, self.speed))]

    def _told(self, words: Sequence[Word]) -> list[Event]:
        self._part.words += words
        if not words or not self.config.audio.output.tells_words:
            return []
        return [{"type": "response.output_audio.words", **self._where, "words": shown(words)}]

    def end(
        self,
        status: Status,
        reason: str | None = None,
        usage: Mapping[str, int] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> list[Event]:
        """Return the events that end it."""
        events: list[Event] = []
        if self.reader is not None and status == "completed":
            text, calls = self.reader.finish()
            events += self._said(text)
            for call in calls:
                events += self._call(call)
        if self.item is not None:
            events += self._end_item(self.item, whole=status == "completed" or reason == "max_output_tokens")
            self.item.status = "completed" if status == "completed" else "incomplete"
            events += self._item_done(self.item)
        details: Event | None = None
        if status != "completed":
            details = {"type": status}
            details |= {"reason": reason} if reason else {}
            details |= {"error": dict(error)} if error else {}
        return [*events, {"type": "response.done", "response": self._shown(status, details, usage)}]

    def _said(self, text: str) -> list[Event]:
        if not text:
            return []
        events = self._begin()
        part = self._part
        part.text = (part.text or "") + text
        kind = "output_audio_transcript" if self.config.speaks else "output_text"
        return [*events, {"type": f"response.{kind}.delta", **self._where, "delta": text}]

    def _heard(self, data: bytes) -> list[Event]:
        if not data:
            return []
        self._part.audio_ms += self.config.audio.output.format.wire.milliseconds(len(data))
        return [{"type": "response.output_audio.delta", **self._where, "delta": base64.b64encode(data).decode()}]

    def _call(self, call: ToolCall) -> list[Event]:
        item = Item(
            self.new_id("item"), "function_call", status="in_progress", call_id=call.identity, name=call.name, text=""
        )
        events = self._add(item)
        item.text, item.status = call.arguments, "completed"
        where = {
            "response_id": self.id,
            "item_id": item.id,
            "output_index": self.output.index(item),
            "call_id": call.identity,
        }
        name = "response.function_call_arguments"
        events.append({"type": f"{name}.delta", **where, "delta": call.arguments})
        events.append({"type": f"{name}.done", **where, "name": call.name, "arguments": call.arguments})
        return [*events, *self._item_done(item)]

    def _begin(self) -> list[Event]:
        """Open the message at its first piece."""
        if self.item is not None:
            return []
        self.item = Item(self.new_id("item"), "message", "assistant", "in_progress")
        events = self._add(self.item)
        self.item.content.append(Part("output_audio" if self.config.speaks else "output_text", ""))
        part = {"type": "audio", "transcript": ""} if self.config.speaks else {"type": "text", "text": ""}
        return [*events, {"type": "response.content_part.added", **self._where, "part": part}]

    def _end_item(self, item: Item, *, whole: bool) -> list[Event]:
        part, events = self._part, []
        if self._audio is not None and whole:
            events += self._heard(self._audio.finish())
        part.whole = whole
        where, text = self._where, part.text or ""
        if self.config.speaks:
            events.append({"type": "response.output_audio.done", **where})
            events.append({"type": "response.output_audio_transcript.done", **where, "transcript": text})
            shown = {"type": "audio", "transcript": text}
        else:
            events.append({"type": "response.output_text.done", **where, "text": text})
            shown = {"type": "text", "text": text}
        return [*events, {"type": "response.content_part.done", **where, "part": shown}]

    def _add(self, item: Item) -> list[Event]:
        self.output.append(item)
        index = len(self.output) - 1
        events: list[Event] = [
            {
                "type": "response.output_item.added",
                "response_id": self.id,
                "output_index": index,
                "item": item.shown(),
            }
        ]
        if self.adopt is not None:
            previous = self.adopt(item)
            events.append({"type": "conversation.item.added", "previous_item_id": previous, "item": item.shown()})
        return events

    def _item_done(self, item: Item) -> list[Event]:
        index = self.output.index(item)
        events: list[Event] = []
        if self.adopt is not None:
            events.append({"type": "conversation.item.done", "item": item.shown()})
        done = {"type": "response.output_item.done", "response_id": self.id, "output_index": index}
        return [*events, {**done, "item": item.shown()}]

    @property
    def _part(self) -> Part:
        assert self.item is not None
        return self.item.content[0]

    @property
    def _where(self) -> dict[str, Any]:
        assert self.item is not None
        return {
            "response_id": self.id,
            "item_id": self.item.id,
            "output_index": self.output.index(self.item),
            "content_index": 0,
        }

    def _shown(self, status: str, details: Event | None, usage: Mapping[str, int] | None) -> dict[str, Any]:
        output = self.config.audio.output
        made: dict[str, Any] = {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": [item.shown() for item in self.output],
            "conversation_id": self.conversation_id,
            "output_modalities": list(self.config.output_modalities),
            "max_output_tokens": self.config.max_output_tokens,
            "usage": None,
            "metadata": dict(self.metadata) if self.metadata is not None else None,
        }
        if self.config.speaks:
            made["audio"] = {"output": {"format": output.format.shown(), "voice": output.voice}}
        if usage is not None:
            made["usage"] = of_turn(usage)
        return made
