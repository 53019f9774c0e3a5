"""The items of a conversation: how clients write and see them, and the messages that a pipeline makes a reply from."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field

from omni_core.api import Word, shown
from omni_serve.conversations import Messages, add_call, add_result, add_texts
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import check_fields
from omni_serve.realtime.audio import INPUT_RATE, LEAST_MS, InputAudio, Wire, from_base64, from_wav, wav
from omni_serve.realtime.config import Offer
from omni_serve.realtime.frames import Frame, seen

BETA_PARTS = {"text": "output_text", "audio": "output_audio"}
"""Types of an assistant's parts in the beta API, and their names now."""

_PARTS = {
    "user": ("input_text", "input_audio", "input_image"),
    "system": ("input_text",),
    "assistant": ("output_text", "output_audio"),
}
_PART_FIELDS = {
    "input_text": ("type", "text"),
    "input_audio": ("type", "audio", "transcript"),
    "input_image": ("type", "image_url", "detail"),
    "output_text": ("type", "text"),
    "output_audio": ("type", "audio", "transcript"),
}
_FIELDS = {
    "message": ("id", "object", "type", "status", "role", "content"),
    "function_call": ("id", "object", "type", "status", "name", "arguments", "call_id"),
    "function_call_output": ("id", "object", "type", "status", "call_id", "output"),
}

_CHARACTER_MS = 65
"""The time that a character takes to say, where it is not known yet how long a speech will be."""


@define
class Part:
    """A content part.

    Attributes:
        text: of a recording or a speech, its transcript.
        data: a recording or an image, as a file.
        audio_ms: how much of a speech has been made.
        whole: it has been made to its end.
        heard_ms: how much of it the user has heard; ``None``: all.
        frames: of a turn, beside its recording.
        words: of a speech, those that are known with their times in it.
    """

    type: str
    text: str | None = None
    data: bytes = field(default=b"", repr=False)
    audio_ms: float = 0.0
    whole: bool = False
    heard_ms: float | None = None
    frames: list[Frame] = field(factory=list, repr=False)
    words: list[Word] = field(factory=list, repr=False)

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        seen, said = sum(len(frame.data) for frame in self.frames), 100 * len(self.words)
        return len(self.data) + len(self.text or "") + seen + said + 400

    @property
    def heard(self) -> str:
        """The text that the user has read or heard, to the last whole word."""
        text = self.text or ""
        if self.heard_ms is None:
            return text
        if self.words:
            return _until(text, self.words, self.heard_ms / 1000)
        total = self.audio_ms if self.whole else max(self.audio_ms, len(text) * _CHARACTER_MS)
        cut = round(len(text) * min(1.0, self.heard_ms / total)) if total else 0
        if cut >= len(text) or text[cut : cut + 1].isspace():
            return text[:cut]
        return text[:cut].rpartition(" ")[0] if " " in text else text[:cut]

    def shown(self, audio: Wire | None = None) -> dict[str, Any]:
        """Return it as clients see it; with ``audio``, a recording is in it."""
        if self.type in ("input_text", "output_text"):
            return {"type": self.type, "text": self.heard}
        if self.type == "input_image":
            return {"type": self.type}
        if self.type == "input_video":
            return {"type": self.type, "times_ms": [frame.at for frame in self.frames]}
        made: dict[str, Any] = {"type": self.type, "transcript": self.heard if self.text is not None else None}
        if audio is not None and self.data:
            made["audio"] = base64.b64encode(from_wav(self.data, audio)).decode()
        return made


def _until(text: str, words: Sequence[Word], seconds: float) -> str:
    """Return a text up to the last of its words that ends by a time, with the marks behind it."""
    end = 0
    for word in words:
        at = text.find(word.text, end) if word.end <= seconds else -1
        if at < 0:
            break
        end = at + len(word.text)
    marks = re.match(r"[^\w\s]*", text[end:]) if end else None
    return text[: end + (marks.end() if marks else 0)]


@define(eq=False)
class Item:
    """An item: a message, a call of a tool, or what the tool has answered."""

    id: str
    type: str
    role: str | None = None
    status: str = "completed"
    content: list[Part] = field(factory=list)
    call_id: str = ""
    name: str = ""
    text: str = ""

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.text) + sum(part.size for part in self.content) + 200

    def shown(self, audio: Wire | None = None) -> dict[str, Any]:
        """Return it as clients see it."""
        made: dict[str, Any] = {
            "id": self.id,
            "object": "realtime.item",
            "type": self.type,
            "status": self.status,
        }
        if self.type == "message":
            return {**made, "role": self.role, "content": [part.shown(audio) for part in self.content]}
        if self.type == "function_call":
            return {**made, "name": self.name, "call_id": self.call_id, "arguments": self.text}
        return {**made, "call_id": self.call_id, "output": self.text}


def recording(text: str, wire: Wire, where: str, most_bytes: int) -> bytes:
    """Return the sound of an item, which a client has sent as base64, as a file. It takes a while for a long one.

    Raises:
        ApiError: 400, it is none, or shorter than :data:`LEAST_MS`; 413, it is over the limit of an item.
    """
    raw = from_base64(text, where)
    length = wire.milliseconds(len(raw))
    if length < LEAST_MS:
        raise invalid(f"{where}: {length:.0f} ms of sound; at least {LEAST_MS} ms are needed", where, "invalid_value")
    if length * INPUT_RATE * 2 / 1000 > most_bytes:
        raise too_large(where, most_bytes)
    sound = InputAudio(wire)
    return wav(np.concatenate([sound.write(raw), sound.flush()]))


def too_large(where: str, most_bytes: int) -> ApiError:
    """Return the error of an item that is larger than a conversation may be."""
    limit = f"{most_bytes / 2**20:g} MiB (history_mib)"
    return ApiError(413, f"{where}: is over the limit of {limit}", param=where, code="item_too_large")


def read_item(data: Any, identity: str, wire: Wire, most_bytes: int, where: str = "item") -> Item:
    """Return an item that a client has made. Its images are bytes already, and so may be its recordings (see :func:`recording`).

    Args:
        identity: the id if it has none.
        wire: the format of its sound.

    Raises:
        ApiError: 400, it is malformed; 413, a recording is over ``most_bytes``.
    """
    if not isinstance(data, Mapping):
        raise invalid(f"{where}: must be an object", where, "invalid_type")
    type_ = data.get("type")
    if not isinstance(type_, str) or type_ not in _FIELDS:
        raise invalid(
            f"{where}.type: must be one of {', '.join(_FIELDS)}, is {shown(type_)}", f"{where}.type", "invalid_value"
        )
    check_fields(data, _FIELDS[type_], where)
    identity = _text(data, "id", where, identity)
    if not 0 < len(identity) <= 64:
        raise invalid(f"{where}.id: must have 1 to 64 characters", f"{where}.id", "invalid_value")
    if type_ == "function_call":
        call = _text(data, "call_id", where, identity)
        return Item(
            identity, type_, call_id=call, name=_text(data, "name", where), text=_text(data, "arguments", where)
        )
    if type_ == "function_call_output":
        return Item(identity, type_, call_id=_text(data, "call_id", where), text=_text(data, "output", where))
    role = data.get("role")
    if not isinstance(role, str) or role not in _PARTS:
        raise invalid(
            f"{where}.role: must be one of {', '.join(_PARTS)}, is {shown(role)}", f"{where}.role", "invalid_value"
        )
    content = data.get("content")
    if not isinstance(content, list) or not content:
        raise invalid(f"{where}.content: must be a non-empty list of parts", f"{where}.content", "invalid_type")
    parts = [_part(part, role, wire, most_bytes, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return Item(identity, type_, role, content=parts)


def _part(data: Any, role: str, wire: Wire, most_bytes: int, where: str) -> Part:
    if not isinstance(data, Mapping):
        raise invalid(f"{where}: must be an object", where, "invalid_type")
    type_ = data.get("type")
    if not isinstance(type_, str) or type_ not in _PARTS[role]:
        is_beta = role == "assistant" and isinstance(type_, str) and type_ in BETA_PARTS
        hint = f" ({shown(type_)} is a name of the beta API)" if is_beta else ""
        raise invalid(
            f"{where}.type: must be one of {', '.join(_PARTS[role])} for {role}, is {shown(type_)}{hint}",
            f"{where}.type",
            "invalid_value",
        )
    check_fields(data, _PART_FIELDS[type_], where)
    if type_ == "input_image":
        image = data.get("image_url")
        if not isinstance(image, bytes):
            raise invalid(f"{where}.image_url: must be a data: URL of an image", f"{where}.image_url", "invalid_value")
        return Part(type_, data=image)
    if type_ in ("input_text", "output_text"):
        return Part(type_, _text(data, "text", where))
    transcript = data.get("transcript")
    if transcript is not None and not isinstance(transcript, str):
        raise invalid(f"{where}.transcript: must be text", f"{where}.transcript", "invalid_type")
    if type_ == "output_audio":
        # A pipeline reads earlier answers as text: their sound is not kept.
        if transcript is None:
            raise invalid(f"{where}.transcript: is needed", f"{where}.transcript", "missing_required_parameter")
        return Part(type_, transcript, whole=True)
    sound = data.get("audio")
    if not isinstance(sound, bytes):
        sound = recording(_text(data, "audio", where), wire, f"{where}.audio", most_bytes)
    return Part(type_, transcript, data=sound)


def _text(data: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = data.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        code = "missing_required_parameter" if value is None else "invalid_type"
        raise invalid(f"{where}.{name}: must be text", f"{where}.{name}", code)
    return value


def turn(identity: str, sound: bytes, frames: list[Frame], offer: Offer) -> Item:
    """Return the item of what a user has said and shown. ``sound``: as a file."""
    kept = frames[-1:] if offer.sight == "image" else frames
    parts = [Part("input_audio", data=sound), *([Part("input_video", frames=kept)] if kept else [])]
    return Item(identity, "message", "user", content=parts)


def messages_of(items: list[Item], instructions: str, offer: Offer) -> Messages:
    """Return the messages for the pipeline.

    Of a speech that was interrupted, the words that were heard are in it; one of which nothing was heard is left out.
    """
    made: Messages = []
    add_texts(made, "system", [instructions])
    for item in items:
        if item.type == "function_call":
            add_call(made, item.call_id, item.name, item.text)
        elif item.type == "function_call_output":
            add_result(made, item.call_id, item.text)
        elif item.role == "user":
            made.append({"role": "user", "content": _message_parts(item.content, offer)})
        else:
            add_texts(made, str(item.role), [part.heard for part in item.content])
    return made


def _message_parts(parts: list[Part], offer: Offer) -> list[dict[str, Any]]:
    if parts[-1].frames:
        return seen(parts[-1].frames, parts[0].data, offer)
    return [_message_part(part, offer) for part in parts]


def _message_part(part: Part, offer: Offer) -> dict[str, Any]:
    if part.type == "input_text" or (part.type == "input_audio" and part.text and offer.reads_transcripts):
        return {"type": "text", "text": part.text}
    return {"type": "audio" if part.type == "input_audio" else "image", "data": part.data}
