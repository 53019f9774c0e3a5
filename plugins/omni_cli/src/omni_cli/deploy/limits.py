"""The limits that a config sets for requests: counted in what each brings, before it is admitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.api import InvalidRequestError


def check_limits(limits: Mapping[str, int], inputs: Any) -> None:
    """Refuse a request that brings more than the config allows.

    Raises:
        InvalidRequestError: it names the limit, what the request has and the most that it may have.
    """
    inputs = inputs if isinstance(inputs, dict) else {"messages": [{"content": inputs}]}
    messages = inputs.get("messages")
    messages = messages if isinstance(messages, list) else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for each in contents if isinstance(each, list) for part in each if isinstance(part, dict)]
    texts = [each for each in contents if isinstance(each, str)]
    texts += [part["text"] for part in parts if isinstance(part.get("text"), str)]
    references = inputs.get("references")
    found = {f"{kind}s": sum(part.get("type") == kind for part in parts) for kind in ("image", "audio", "video")}
    found["messages"] = len(messages)
    found["references"] = len(references) if isinstance(references, list) else 0
    found["text_characters"] = sum(map(len, texts))
    for name, most in limits.items():
        if found[name] > most:
            what = name.replace("_", " ")
            raise InvalidRequestError(
                f"inputs: this request has {found[name]:,} {what}; at most {most:,} are allowed (limits.{name})"
            )
