"""Checks the messages of a request and prepares them for the checkpoint's chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from omni_core.api import InvalidRequestError, OmniRequest, StagePayload, text_of, text_to_speak
from omni_media.api import MediaSource, Spent
from omni_qwen3.tool_calls import read_calls, read_tools

ROLES = ("system", "user", "assistant", "tool")
KINDS = ("text", "image", "audio", "video")

LONG_CHARACTERS = 20_000
"""From here on a text takes long: tens of milliseconds."""


class Chat:
    """The messages of one request in the form that chat templates read, their media in order, and the tools; or its ``prompt`` as it is.

    Raises:
        InvalidRequestError: the messages are malformed; the message says where.
    """

    def __init__(self, inputs: Any, reserved: Sequence[str]) -> None:
        self.prompt = inputs.get("prompt") if isinstance(inputs, dict) else None
        self.messages: list[dict[str, Any]] = []
        self.media: list[MediaSource] = []
        self.tools: list[dict[str, Any]] = []
        if self.prompt is not None:
            if not isinstance(self.prompt, str) or not self.prompt or inputs.get("messages"):
                raise InvalidRequestError("inputs.prompt: must be a text, in place of messages")
            return
        messages = inputs.get("messages") if isinstance(inputs, dict) else None
        if not isinstance(messages, list) or not messages:
            raise InvalidRequestError("inputs.messages: must be a non-empty list of {'role': ..., 'content': ...}")
        if inputs.get("references"):
            raise InvalidRequestError(
                "inputs.references: not supported by this model; choose one of its voices with metadata.speaker"
            )
        self._spent = Spent()
        self._reserved = reserved
        self.tools = read_tools(inputs, self._check)
        self.messages = [self._message(message, f"messages[{index}]") for index, message in enumerate(messages)]

    def _message(self, message: Any, where: str) -> dict[str, Any]:
        if not isinstance(message, dict) or "content" not in message:
            raise InvalidRequestError(f"{where}: must be {{'role': ..., 'content': ...}}")
        if message.get("role") not in ROLES:
            raise InvalidRequestError(f"{where}.role: must be one of {', '.join(ROLES)}, is {message.get('role')!r}")
        content = message["content"]
        calls = message.get("tool_calls")
        if isinstance(content, str) or (content is None and calls):
            content = [{"type": "text", "text": content or ""}]
        if not isinstance(content, list) or not content:
            raise InvalidRequestError(f"{where}.content: must be text or a non-empty list of parts")
        parts = [self._part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
        made = {"role": message["role"], "content": parts}
        if calls:
            if message["role"] != "assistant":
                raise InvalidRequestError(f"{where}.tool_calls: only messages of the assistant have them")
            made["tool_calls"] = read_calls(calls, f"{where}.tool_calls", self._check)
        return made

    def _part(self, part: Any, where: str) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in KINDS:
            raise InvalidRequestError(f"{where}.type: must be one of {', '.join(KINDS)}, is {kind!r}")
        if kind != "text":
            self.media.append(MediaSource(kind, part, where, self._spent))
            return {"type": kind}
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}.text: must be text, is {type(text).__name__}")
        self._check(text, f"{where}.text")
        return {"type": "text", "text": text}

    def _check(self, text: str, where: str) -> None:
        for token in self._reserved:
            if token in text:
                raise InvalidRequestError(
                    f"{where}: contains {token!r}, which is reserved for the prompt's own structure"
                )


READ_ALOUD = "Read the text aloud, word for word."
"""The user's turn before a text that the assistant speaks as it is."""


def read_aloud(request: OmniRequest, chat: Chat) -> tuple[str, list[dict[str, Any]]]:
    """Return the text that a request wants to be spoken, and the messages to which it is the assistant's answer.

    Raises:
        InvalidRequestError: it has none, or more than that and a system message.
    """
    if [each["role"] for each in chat.messages] not in (["user"], ["system", "user"]):
        raise InvalidRequestError(
            "messages: a text to speak is one message of the user, after a system message at most"
        )
    text = text_to_speak(request)
    assert text is not None, "a chat has messages"
    if chat.tools or chat.media:
        raise InvalidRequestError("inputs: a text to speak has no tools and no media beside it")
    how = [f"{text_of(each)}\n\n" for each in chat.messages[:-1]]
    return text, [{"role": "user", "content": [{"type": "text", "text": "".join([*how, READ_ALOUD])}]}]


def replace_in_order(prompt: str, placeholders: list[str], replacements: list[str]) -> str:
    """Replace the placeholders of a rendered prompt, first to last, by ``replacements``."""
    pattern = "|".join(map(re.escape, placeholders))
    found = re.findall(pattern, prompt)
    if len(found) != len(replacements):
        raise InvalidRequestError(
            f"the chat template left {len(found)} media placeholders for {len(replacements)} pieces of media"
        )
    following = iter(replacements)
    return re.sub(pattern, lambda match: next(following), prompt)


def takes_long(payload: StagePayload) -> bool:
    """Return if a request's preprocessing takes long: it has media, or much text. Its inputs are not checked yet."""
    inputs = payload.request.inputs
    messages = inputs.get("messages") if isinstance(inputs, dict) else None
    if isinstance(inputs, dict) and isinstance(inputs.get("prompt"), str):
        return len(inputs["prompt"]) > LONG_CHARACTERS
    characters = len(repr(inputs["tools"])) if isinstance(inputs, dict) and inputs.get("tools") else 0
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            characters += len(content)
        for part in content if isinstance(content, list) else ():
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            if not isinstance(text, str):
                return True
            characters += len(text)
    return characters > LONG_CHARACTERS
