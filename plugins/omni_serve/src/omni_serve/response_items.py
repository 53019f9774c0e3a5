"""The input items and the tools of ``/v1/responses``, as messages and tools of a chat."""

from __future__ import annotations

from typing import Any

from omni_serve.errors import invalid


def messages_of(items: str | list[dict[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """Return the messages of a chat. Raises ApiError 400 that names the item."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if not items:
        raise invalid("input: must not be empty", "input", "invalid_value")
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = item.get("type", "message")
        if kind == "message":
            content = item.get("content")
            parts = content if isinstance(content, list) else None
            messages.append(
                {
                    "role": item.get("role"),
                    "content": content
                    if parts is None
                    else [_part(part, f"{where}.content[{number}]") for number, part in enumerate(parts)],
                }
            )
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            last = messages[-1] if messages else {}
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        else:
            raise invalid(
                f"{where}.type: items of type {kind!r:.80} are not read here", f"{where}.type", "unsupported_value"
            )
    return messages


def _part(part: Any, where: str) -> Any:
    """Return a content part in the words of a chat."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image":
        if not isinstance(part.get("image_url"), str):
            raise invalid(f"{where}.image_url: an image must be sent as a data: URL", f"{where}.image_url")
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part.get("detail") or "auto"}}
    if kind == "input_file":
        return {"type": "file", "file": {key: value for key, value in part.items() if key != "type"}}
    return part


def tools_of(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return the tools of a chat. Raises ApiError 400 for tools of OpenAI's platform."""
    made = []
    for index, tool in enumerate(tools or []):
        if tool.get("type") != "function":
            where = f"tools[{index}].type"
            raise invalid(f"{where}: only functions can be called here, not {tool.get('type')!r:.80}", where)
        fields = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
        made.append({"type": "function", "function": fields})
    return made or None
