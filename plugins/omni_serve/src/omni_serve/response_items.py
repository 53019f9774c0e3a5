"""The input items and the tools of ``/v1/responses``, as messages and tools of a chat; and its errors in the words of responses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from omni_core.api import shown
from omni_serve.conversations import add_call, add_result
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import check_fields, ignore

_MESSAGE = ("type", "role", "content", "id", "status")
_CALL = ("type", "call_id", "name", "arguments", "id", "status")
_OUTPUT = ("type", "call_id", "output", "id", "status")


@define
class Items:
    """The input of a response as messages.

    Attributes:
        messages: of the chat.
        places: where each of them is in the response's request.
        items: what the request adds to the conversation.
        reasoning: the pipeline reads what the model has thought before a message or a call.
    """

    messages: list[dict[str, Any]] = field(factory=list)
    places: list[str] = field(factory=list)
    items: list[Any] = field(factory=list)
    reasoning: bool = False
    _thoughts: str = ""

    @classmethod
    def read(
        cls,
        items: str | Sequence[Any],
        instructions: str | None,
        kept: Callable[[str], str | None],
        most: int,
        reasoning: bool = False,
        earlier: Sequence[Any] = (),
    ) -> Items:
        """Return the messages of a chat. Raises ApiError 400 or 413 that names the item.

        Args:
            kept: returns an item of an earlier response as JSON, by its id.
            most: characters of all those items.
            reasoning: as the attribute.
            earlier: the items of the conversation before.
        """
        made = cls(reasoning=reasoning)
        if instructions:
            made._add("instructions", role="system", content=instructions)
        for item in earlier:
            made._item(item, "previous_response_id")
        if isinstance(items, str):
            made._add("input", role="user", content=items)
            made.items.append({"role": "user", "content": items})
        else:
            for index, item in enumerate(items):
                where = f"input[{index}]"
                if not isinstance(item, Mapping):
                    raise invalid(f"{where}: must be an object", where, "invalid_type")
                if item.get("type") == "item_reference":
                    found = _referred(item, where, kept)
                    most -= len(found)
                    if most < 0:
                        problem = f"{where}: the items referred to are over the limit of characters (text_characters)"
                        raise ApiError(413, problem, param=where)
                    item = json.loads(found)
                made._item(item, where)
                made.items.append(item)
        return made

    def _add(self, place: str, **message: Any) -> None:
        self.messages.append(message)
        self.places.append(place)

    def _item(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            self._thoughts = _thoughts(item) if self.reasoning else ""
            if not self._thoughts:  # of a model that tells a digest, or nobody reads it
                ignore(where)
            return
        known = {"message": _MESSAGE, "function_call": _CALL, "function_call_output": _OUTPUT}.get(str(kind))
        if known is None:
            where = f"{where}.type"
            raise invalid(f"{where}: items of type {shown(kind)} are not read here", where, "unsupported_value")
        check_fields(item, known, where)
        if kind == "message":
            self._add(where, role=item.get("role"), content=_content(item.get("content"), f"{where}.content"))
            self._think()
            return
        for name in ("call_id", *(("name", "arguments") if kind == "function_call" else ())):
            if not isinstance(item.get(name), str):
                raise invalid(f"{where}.{name}: must be text", f"{where}.{name}", "invalid_type")
        if kind == "function_call_output":
            add_result(self.messages, item["call_id"], _content(item.get("output"), f"{where}.output"))
            self.places.append(where)
        else:
            if add_call(self.messages, item["call_id"], item["name"], item["arguments"]):
                self.places.append(where)
            self._think()

    def _think(self) -> None:
        """Give the last message what was thought before it."""
        if self._thoughts and self.messages[-1].get("role") == "assistant":
            self.messages[-1].setdefault("reasoning_content", self._thoughts)
        self._thoughts = ""

    def in_their_words(self, error: ApiError) -> ApiError:
        """Return the error of a chat with its place named as in the request of the response."""
        path = error.param or ""
        if found := re.match(r"messages\[(\d+)\]", path):
            place = self.places[int(found[1])] if int(found[1]) < len(self.places) else "input"
            rest = path[found.end() :].replace(".tool_call_id", ".call_id").replace("image_url.url", "image_url")
            new = place + (rest if place.endswith("]") else "")
            new = re.sub(r"\.file\.(file_data|filename)", r".\1", new)
        elif path.startswith("response_format"):
            new = path.replace("response_format.json_schema", "text.format").replace("response_format", "text.format")
        elif path.startswith(("tools", "tool_choice")):
            new = path.replace(".function", "").replace(".allowed_tools", "")
        else:
            return error
        if path:
            error.message = error.message.replace(path, new, 1)
            error.param = new
        return error


def _referred(item: Mapping[str, Any], where: str, kept: Callable[[str], str | None]) -> str:
    found = kept(item["id"]) if isinstance(item.get("id"), str) else None
    if found is None:
        text = "no item of this id is kept (they expire, and `store: false` keeps none); send the item itself instead"
        raise invalid(f"{where}.id: {text}", f"{where}.id", "item_not_found")
    return found


def _thoughts(item: Mapping[str, Any]) -> str:
    parts = item.get("content")
    texts = [each.get("text") for each in parts if isinstance(each, Mapping)] if isinstance(parts, list) else []
    return "".join(each for each in texts if isinstance(each, str))


def _content(content: Any, where: str) -> Any:
    if not isinstance(content, list):
        return content
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


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
            raise invalid(f"{where}: only functions can be called here, not {shown(tool.get('type'))}", where)
        fields = {key: value for key, value in tool.items() if key != "type" and value not in (None, False)}
        made.append({"type": "function", "function": fields})
    return made or None


def choice_of(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return a choice of tools in the words of a chat."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        listed = [choice_of(each) for each in tools] if isinstance(tools, list) else tools
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": listed}}
    return choice
