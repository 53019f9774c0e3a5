"""The messages of a chat as OpenAI's clients send them, in the form that the pipeline reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.api import shown
from omni_serve.errors import invalid
from omni_serve.ignored import check_fields, ignore
from omni_serve.media import read_messages
from omni_serve.server import Server

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""The pipeline's role for each of OpenAI's."""

_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The key of each kind of part that is text."""

_MEDIA = {
    "image_url": ("url", "detail"),
    "input_audio": ("data", "format"),
    "audio_url": ("url",),
    "video_url": ("url",),
    "file": ("file_data", "filename"),
}
"""The keys of the object in each kind of part that is not."""

_EMPTY = ("type", "annotations", "logprobs", "prompt_cache_breakpoint")
"""Keys of parts that say nothing to a model."""

_KEYS = ("role", "content", "audio", "tool_calls", "tool_call_id", "refusal", "annotations")


class ChatMessages:
    """Reads the messages of one request.

    Args:
        owner: the name of the key, whose spoken answers the messages may refer to.
        tools: true if the pipeline reads calls of tools and their results.
    """

    def __init__(self, server: Server, owner: str, *, tools: bool) -> None:
        self._server, self._owner, self._tools = server, owner, tools

    async def read(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages. Raises ApiError 400 that names the message or the content part."""
        read = [self._message(each, f"messages[{index}]") for index, each in enumerate(messages)]
        _check_results(read)
        return await read_messages(read, self._server.settings)

    def _message(self, message: Mapping[str, Any], where: str) -> dict[str, Any]:
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES or (role == "tool" and not self._tools):
            roles = [each for each in ROLES if each != "tool" or self._tools]
            raise invalid(f"{where}.role: must be one of {', '.join(roles)}, is {shown(role)}", f"{where}.role")
        reasoning = ("reasoning_content",) if self._server.interface.reasoning else ()
        check_fields(message, (*_KEYS, *reasoning), where)
        content = message.get("content")
        if message.get("refusal") and content is None:
            content = message["refusal"]
        if (audio := message.get("audio")) is not None:
            content = self._spoken(audio, f"{where}.audio")
        made: dict[str, Any] = {"role": ROLES[role], "content": content}
        for name in reasoning:
            if isinstance(thoughts := message.get(name), str) and thoughts and role == "assistant":
                made[name] = thoughts
        if (calls := message.get("tool_calls")) and role != "assistant":
            raise invalid(f"{where}.tool_calls: only the assistant's messages have them", f"{where}.tool_calls")
        if calls is not None:
            if not self._tools:
                raise invalid(f"{where}.tool_calls: this pipeline reads none", f"{where}.tool_calls")
            if not (isinstance(calls, list) and all(map(_is_call, calls))):
                wanted = "must be a list of {id, type, function: {name, arguments}}, all of them text"
                raise invalid(f"{where}.tool_calls: {wanted}", f"{where}.tool_calls", "invalid_type")
            made["tool_calls"] = calls
            made["content"] = content = content or ""
        if role == "tool":
            if not isinstance(message.get("tool_call_id"), str):
                wanted = "must be the id of a call"
                raise invalid(f"{where}.tool_call_id: {wanted}", f"{where}.tool_call_id", "invalid_type")
            made["tool_call_id"] = message["tool_call_id"]
        if not isinstance(content, str | list) or (isinstance(content, list) and not content):
            raise invalid(
                f"{where}.content: must be text or a non-empty list of parts", f"{where}.content", "invalid_type"
            )
        if isinstance(content, list):
            made["content"] = [self._part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
        return made

    def _part(self, part: Any, where: str) -> dict[str, Any]:
        """Return a content part. Of ours, only text is allowed: the others may hold paths and arrays, which a client has not."""
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or (kind not in _TEXTS and kind not in _MEDIA):
            kinds = "text, image_url, input_audio, audio_url, video_url, file"
            raise invalid(f"{where}.type: must be one of {kinds}, is {shown(kind)}", f"{where}.type", "invalid_value")
        check_fields(part, (*_EMPTY, _TEXTS.get(kind, kind)), where)
        if kind in _TEXTS:
            text = part.get(_TEXTS[kind])
            if not isinstance(text, str):
                raise invalid(f"{where}.text: must be text", f"{where}.text", "invalid_type")
            return {"type": "text", "text": text}
        takes = self._server.interface.inputs
        medium = {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}.get(kind)
        if medium is not None and takes and medium not in takes:
            raise invalid(
                f"{where}: this pipeline takes no {medium}; it takes: {', '.join(takes)}", where, "unsupported_value"
            )
        inner = part.get(kind)
        if not isinstance(inner, dict):
            return {"type": kind, kind: inner}
        check_fields(inner, _MEDIA[kind], f"{where}.{kind}")
        if inner.get("detail") not in (None, "auto", "high"):
            ignore(f"{where}.{kind}.detail")  # images are read in full detail
        return {"type": kind, kind: {name: inner[name] for name in _MEDIA[kind] if name in inner and name != "detail"}}

    def _spoken(self, audio: Any, where: str) -> str:
        identity = audio.get("id") if isinstance(audio, dict) else None
        found = self._server.spoken.find(identity, self._owner) if isinstance(identity, str) else None
        if found is None:
            raise invalid(
                f"{where}.id: no spoken answer of this id is kept (they expire after "
                f"{self._server.settings.audio_seconds_kept:g} s); send its transcript as content instead",
                f"{where}.id",
                "audio_not_found",
            )
        return found or "..."


def _check_results(messages: list[dict[str, Any]]) -> None:
    """Raise ApiError 400 for the result of a call that the assistant's turn before it has not."""
    calls: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] != "tool":
            calls = {call["id"] for call in message.get("tool_calls", ())}
        elif message["tool_call_id"] not in calls:
            where = f"messages[{index}].tool_call_id"
            raise invalid(f"{where}: the assistant's message before it has no call of this id", where, "invalid_value")


def _is_call(call: Any) -> bool:
    """Return whether this is a call of a function as an assistant's message has it."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return False
    return all(isinstance(each, str) for each in (call.get("id"), function.get("name"), function.get("arguments")))
