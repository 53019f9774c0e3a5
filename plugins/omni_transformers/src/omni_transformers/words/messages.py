"""The messages of a request, with their media decoded, in the form that chat templates of transformers read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, field, frozen

from omni_core.api import InvalidRequestError
from omni_media.api import Limits, MediaSource, Spent, Video, frames, images, sound

ROLES = ("system", "developer", "user", "assistant", "tool")

MOST_FRAMES = 64
"""Of a video, for a processor that does not say how many it takes."""

_KEPT = ("name", "tool_call_id", "reasoning_content")
"""Fields of a message that templates read as they are."""


@frozen
class Conversation:
    """The messages of a request.

    Attributes:
        messages: each ``role`` and ``content``, a list of parts: ``{"type": "text", "text": ...}``, ``{"type": "image", "image": ...}``
            and so on, the media decoded.
        tools: as the template reads them.
        variables: of the template.
        sounds: float32 ``[n]`` each; with ``pictures`` and ``videos`` those of the parts, in order.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] = field(factory=list)
    variables: dict[str, Any] = field(factory=dict, kw_only=True)
    sounds: list[Any] = field(factory=list)
    pictures: list[Any] = field(factory=list)
    videos: list[Video] = field(factory=list)

    @property
    def media(self) -> bool:
        """True if there are any."""
        return bool(self.sounds or self.pictures or self.videos)

    @property
    def text(self) -> str:
        """The texts of all messages, a line each."""
        texts = ("".join(each["text"] for each in message["content"] if "text" in each) for message in self.messages)
        return "\n".join(each for each in texts if each)

    def kinds(self) -> list[str]:
        """Return the kinds of the media, in order."""
        return [part["type"] for message in self.messages for part in message["content"] if part["type"] != "text"]

    def in_parts(self) -> list[dict[str, Any]]:
        """Return messages whose contents are lists of parts."""
        return [{**message, "content": list(message["content"])} for message in self.messages]

    def in_strings(self, placeholder: Callable[[str], str]) -> list[dict[str, Any]]:
        """Return messages whose contents are texts, media a placeholder each."""
        return [
            {**each, "content": "".join(part.get("text", placeholder(part["type"])) for part in each["content"])}
            for each in self.messages
        ]

    def video_metadata(self) -> list[dict[str, Any]]:
        """Return the times of the frames, as processors read them."""
        return [
            {
                "total_num_frames": len(each.frames),
                "fps": each.fps,
                "duration": len(each.frames) / each.fps,
                "frames_indices": list(range(len(each.frames))),
                "height": each.frames[0].shape[0],
                "width": each.frames[0].shape[1],
            }
            for each in self.videos
        ]


def read_messages(
    inputs: Any, kinds: Sequence[str], processor: Any, limits: Limits, variables: dict[str, Any] | None = None
) -> Conversation:
    """Read the messages of a request.

    Args:
        kinds: of parts that the model takes.
        processor: says in which rates it takes sound and video.
        variables: of the template.

    Raises:
        InvalidRequestError: they are malformed, or hold a kind of part that the model does not take; or media cannot be decoded.
    """
    given = inputs.get("messages") if isinstance(inputs, dict) else None
    if not isinstance(given, list) or not given:
        raise InvalidRequestError("inputs.messages: must be a non-empty list of {'role': ..., 'content': ...}")
    tools = inputs.get("tools") or []
    if not isinstance(tools, list):
        raise InvalidRequestError("inputs.tools: must be a list of functions")
    found = Conversation([], tools, variables=variables or {})
    spent = Spent()
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or "content" not in message or message.get("role") not in ROLES:
            raise InvalidRequestError(
                f"{where}: must be {{'role': ..., 'content': ...}} with a role of {', '.join(ROLES)}"
            )
        content = message["content"]
        parts = [] if content is None else [content] if isinstance(content, str) else content
        if not isinstance(parts, list):
            raise InvalidRequestError(f"{where}.content: must be a text or a list of parts")
        made: dict[str, Any] = {"role": message["role"], "content": []}
        made |= {name: message[name] for name in _KEPT if message.get(name) is not None}
        if message.get("tool_calls"):
            made["tool_calls"] = [_call(each, f"{where}.tool_calls") for each in message["tool_calls"]]
        for number, part in enumerate(parts):
            place = f"{where}.content[{number}]"
            made["content"] += _part(found, part, place, kinds, processor, limits, spent)
        found.messages.append(made)
    return found


def _part(
    found: Conversation, part: Any, where: str, kinds: Sequence[str], processor: Any, limits: Limits, spent: Spent
) -> list[dict[str, Any]]:
    """Return a part as a template reads it, and add its media to the conversation's."""
    if isinstance(part, str):
        return [{"type": "text", "text": part}]
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return [{"type": "text", "text": part["text"]}]
    if kind not in ("image", "audio", "video"):
        raise InvalidRequestError(f"{where}: must be a text, or {{'type': ...}} of one of {', '.join(kinds)}")
    if kind not in kinds:
        raise InvalidRequestError(f"{where}: this model takes no {kind}; it takes {' and '.join(kinds)}")
    source = MediaSource(kind, part, where, spent)
    if kind == "image":
        pictures = images(source, limits)
        found.pictures.extend(pictures)
        return [{"type": "image", "image": each} for each in pictures]
    if kind == "audio":
        found.sounds.append(sound(source, rate_of(processor), limits))
        return [{"type": "audio", "audio": found.sounds[-1]}]
    found.videos.append(_video(source, processor, limits))
    return [{"type": "video", "video": found.videos[-1].frames}]


def rate_of(processor: Any) -> int:
    """Return the rate in Hz of the sound that a processor takes."""
    part = getattr(processor, "feature_extractor", None) or getattr(processor, "audio_processor", None)
    return int(getattr(part, "sampling_rate", None) or 16_000)


def _video(source: MediaSource, processor: Any, limits: Limits) -> Video:
    """Decode a video at the rate of its processor, or in as many frames as it wants."""
    settings = getattr(processor, "video_processor", None)
    count = getattr(settings, "num_frames", None)
    most = count or getattr(settings, "max_frames", None) or MOST_FRAMES
    fps = getattr(settings, "fps", None) or (30.0 if count else 2.0)
    return frames(source, float(fps), evolve(limits, max_video_frames=min(int(most), limits.max_video_frames)))


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f"{where}: must be a list of {{'function': {{'name': ..., 'arguments': ...}}}}")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            raise InvalidRequestError(f"{where}: the arguments of {function['name']!r} are no JSON") from None
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}
