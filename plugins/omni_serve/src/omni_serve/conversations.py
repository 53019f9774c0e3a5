"""The messages of a chat, made from the items of a conversation: one way for ``/v1/responses`` and the sessions by voice.

Each message stays a message of its own, as in a chat: two of a user in a row are two, and texts are never joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Messages = list[dict[str, Any]]


def add_texts(messages: Messages, role: str, texts: Sequence[str]) -> None:
    """Add a message of texts, each a content part of its own; of none, nothing."""
    said = [text for text in texts if text]
    if said:
        parts = [{"type": "text", "text": text} for text in said]
        messages.append({"role": role, "content": said[0] if len(said) == 1 else parts})


def add_call(messages: Messages, call_id: str, name: str, arguments: str) -> bool:
    """Add a call of a tool to the assistant's message before it; ``True``: there was none, and a message was added."""
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
        return False
    messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    return True


def add_result(messages: Messages, call_id: str, output: Any) -> None:
    """Add what a tool has answered."""
    messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
