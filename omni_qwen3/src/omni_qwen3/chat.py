"""Checks the messages of a request and prepares them for the checkpoint's chat template."""

from __future__ import annotations

import re
from typing import Any

from omni_core.errors import InvalidRequestError
from omni_qwen3.media import MediaSource

ROLES = ("system", "user", "assistant")
KINDS = ("text", "image", "audio", "video")


class Chat:
    """The messages of one request in the form that chat templates read, and their media in order.

    Raises:
        InvalidRequestError: the messages are malformed; the message says where.
    """

    def __init__(self, inputs: Any, reserved: list[str]) -> None:
        messages = inputs.get("messages") if isinstance(inputs, dict) else None
        if not isinstance(messages, list) or not messages:
            raise InvalidRequestError("inputs.messages: must be a non-empty list of {'role': ..., 'content': ...}")
        if inputs.get("references"):
            raise InvalidRequestError(
                "inputs.references: not supported by this model; choose one of its voices with metadata.speaker"
            )
        self.media: list[MediaSource] = []
        self._reserved = reserved
        self.messages = [self._message(message, f"messages[{index}]") for index, message in enumerate(messages)]
        if self.messages[-1]["role"] != "user":
            raise InvalidRequestError(f"messages[{len(messages) - 1}].role: the last message must be the user's")

    def _message(self, message: Any, where: str) -> dict[str, Any]:
        if not isinstance(message, dict) or "content" not in message:
            raise InvalidRequestError(f"{where}: must be {{'role': ..., 'content': ...}}")
        if message.get("role") not in ROLES:
            raise InvalidRequestError(f"{where}.role: must be one of {', '.join(ROLES)}, is {message.get('role')!r}")
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            raise InvalidRequestError(f"{where}.content: must be text or a non-empty list of parts")
        parts = [self._part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
        return {"role": message["role"], "content": parts}

    def _part(self, part: Any, where: str) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in KINDS:
            raise InvalidRequestError(f"{where}.type: must be one of {', '.join(KINDS)}, is {kind!r}")
        if kind != "text":
            self.media.append(MediaSource(kind, part, where))
            return {"type": kind}
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}.text: must be text, is {type(text).__name__}")
        for token in self._reserved:
            if token in text:
                raise InvalidRequestError(
                    f"{where}.text: contains {token!r}, which is reserved for the prompt's own structure"
                )
        return {"type": "text", "text": text}


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
