"""Tools in a chat: what a request may say about them, in the form that chat templates read, and how the reply's calls begin.

A call is written ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``. Tags are plain text for this tokenizer, so that a reply
is decoded with them; the client's side reads the calls out of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from omni_core.api import InvalidRequestError

CALL_BEGIN = "<tool_call>"
"""From here on a reply is not spoken."""

ANY = "*"
"""As ``inputs["tool_choice"]``: the reply begins with a call of any tool."""


def read_tools(inputs: dict[str, Any], check_text: Callable[[str, str], None]) -> list[dict[str, Any]]:
    """Return a request's ``tools``; an empty list if it has none.

    Args:
        check_text: raises if a text, at a place, has a reserved token.

    Raises:
        InvalidRequestError: they are malformed.
    """
    tools = inputs.get("tools") or []
    if not isinstance(tools, list):
        raise InvalidRequestError("inputs.tools: must be a list of {'type': 'function', 'function': {'name': ...}}")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(
                f"inputs.tools[{index}]: must be {{'type': 'function', 'function': {{'name': ...}}}}"
            )
        check_text(json.dumps(tool, ensure_ascii=False), f"inputs.tools[{index}]")
    return tools


def read_calls(calls: Any, where: str, check_text: Callable[[str, str], None]) -> list[dict[str, Any]]:
    """Return an assistant message's ``tool_calls`` as templates read them: arguments as data where they are a JSON object.

    Raises:
        InvalidRequestError: they are malformed.
    """
    if not isinstance(calls, list):
        raise InvalidRequestError(f"{where}: must be a list")
    made = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        name, arguments = (
            (function.get(each) for each in ("name", "arguments")) if isinstance(function, dict) else (0, 0)
        )
        if not isinstance(name, str) or not isinstance(arguments, str | dict):
            raise InvalidRequestError(f"{where}[{index}]: must be {{'function': {{'name': ..., 'arguments': ...}}}}")
        data = _parsed(arguments)
        check_text(
            name + (data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)), f"{where}[{index}]"
        )
        made.append({"type": "function", "function": {"name": name, "arguments": data}})
    return made


def _parsed(arguments: str | dict[str, Any]) -> Any:
    """Return arguments as data; as the text that they are if that is no JSON object: models write such calls, too."""
    if isinstance(arguments, dict):
        return arguments
    try:
        data = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return data if isinstance(data, dict) else arguments


def forced_beginning(inputs: dict[str, Any], tools: Sequence[dict[str, Any]]) -> str:
    """Return what the reply begins with if ``inputs["tool_choice"]`` makes it a call; empty if it does not.

    Raises:
        InvalidRequestError: it names none of the tools.
    """
    choice = inputs.get("tool_choice")
    if choice is None:
        return ""
    names = [tool["function"]["name"] for tool in tools]
    if not names or choice not in (ANY, *names):
        known = f"must be {ANY} or one of: {', '.join(names)}" if names else "the request has no tools"
        raise InvalidRequestError(f"inputs.tool_choice: {known}")
    # Up to where a token of the model's own text would begin.
    return f'{CALL_BEGIN}\n{{"name":' + ("" if choice == ANY else f' "{choice}", "arguments":')
