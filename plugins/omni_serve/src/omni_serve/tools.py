"""The tools of a request: what the client offers, what it wants of the model's choice, and which calls of a reply it gets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from attrs import define, field, frozen
from pydantic import Field, WithJsonSchema

from omni_core.api import Interface, did_you_mean, shown
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import check_fields, ignore
from omni_serve.settings import Limits
from omni_serve.strict_schemas import StrictSchema
from omni_serve.structured import calls_grammar
from omni_serve.tool_formats import ToolCall, ToolReader, tool_reader

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_FUNCTION = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
        "description": {"type": "string"},
        "parameters": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
}
_NAMED = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    },
}

Tools = Annotated[
    list[dict[str, Any]],
    Field(fail_fast=True),
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "function"],
                "properties": {"type": {"const": "function"}, "function": _FUNCTION},
            },
        }
    ),
]
"""The tools of a chat; :meth:`ToolOptions.read` checks them."""

ToolChoice = Annotated[
    str | dict[str, Any],
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                _NAMED,
                {
                    "type": "object",
                    "required": ["type", "allowed_tools"],
                    "properties": {
                        "type": {"const": "allowed_tools"},
                        "allowed_tools": {
                            "type": "object",
                            "required": ["mode", "tools"],
                            "properties": {
                                "mode": {"enum": ["auto", "required"]},
                                "tools": {"type": "array", "items": _NAMED, "minItems": 1},
                            },
                        },
                    },
                },
            ]
        }
    ),
]

_FORM = "must be {'type': 'function', 'function': {'name': ..., 'description': ..., 'parameters': {...}}}"

ANY = "*"
"""Stands for any tool in a request's ``inputs["tool_choice"]``, which makes a reply a call, of pipelines that declare it."""

MOST = 128
"""Tools in a request."""

PIECE = 64
"""Characters of a call's arguments in one delta of a stream."""


@frozen
class ToolOptions:
    """The tools that the model is shown.

    Attributes:
        tools: for the chat template.
        parallel: several calls in one reply are passed on.
        format: of the calls in the model's text.
        forced: the tool that the reply must call, :data:`ANY` for any of them; ``None``: the model decides.
        schemas: of the strict tools, by name.
        begins: the pipeline itself begins a forced reply with the call.
    """

    tools: list[dict[str, Any]]
    parallel: bool
    format: str
    forced: str | None = None
    schemas: Mapping[str, StrictSchema] = field(factory=dict)
    begins: bool = True

    @classmethod
    def read(
        cls,
        interface: Interface,
        limits: Limits,
        tools: Sequence[Mapping[str, Any]] | None,
        choice: str | Mapping[str, Any] | None,
        parallel: bool | None,
    ) -> ToolOptions | None:
        """Check the tools of a request; ``None``: the model is shown none.

        Raises:
            ApiError: 400 or 413 that names the field: it is malformed, or is not honoured.
        """
        if choice == "none":
            return None
        if not tools:
            if choice not in (None, "auto"):
                raise invalid("tool_choice: there are no tools", "tool_choice", "invalid_value")
            if parallel is False:
                ignore("parallel_tool_calls")
            return None
        if not interface.tool_format:
            raise invalid(
                "tools: this pipeline declares no format for calls of tools", "tools", "unsupported_parameter"
            )
        if len(tools) > MOST:
            raise invalid(f"tools: {len(tools)} are over the limit of {MOST}", "tools", "invalid_value")
        read = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
        names = [tool["function"]["name"] for tool in read]
        for index, name in enumerate(names):
            if name in names[:index]:
                where = f"tools[{index}].function.name"
                raise invalid(f"{where}: {name!r} is there twice", where, "invalid_value")
        length = len(json.dumps(read))
        if length > limits.text_characters:
            message = f"tools: {length} characters are over the limit of {limits.text_characters}"
            raise ApiError(413, message, param="tools")
        chosen, forced = _chosen(choice, names)
        can_force = "grammar" in interface.structured and tool_reader(interface.tool_format).written is not None
        if forced is not None and not interface.tool_choice and not can_force:
            raise invalid(
                "tool_choice: only 'auto', 'none' and allowed_tools of mode 'auto' are supported: with this pipeline the model "
                "decides if it calls a tool",
                "tool_choice",
                "unsupported_value",
            )
        shown = [tool for tool in read if tool["function"]["name"] in chosen]
        schemas = _schemas(tools, read)
        given = shown, parallel is not False, interface.tool_format, forced, schemas, interface.tool_choice
        return cls(*given) if shown else None

    @property
    def inputs(self) -> dict[str, Any]:
        """Return what a request of the pipeline has of them."""
        return {"tools": self.tools, **({"tool_choice": self.forced} if self.forced and self.begins else {})}

    def held(self, interface: Interface, answer: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the parameter ``structured`` of a request with these tools: the reply is calls, if it must be, or ``answer``.

        Args:
            answer: the parameter without tools; ``None``: the text is free.

        Raises:
            ApiError: 400, the pipeline cannot be held to either of the two.
        """
        written = tool_reader(self.format).written if "grammar" in interface.structured else None
        if self.forced is None and answer is None:
            return None
        if written is None:
            if answer is None or self.forced is not None:
                return None
            raise invalid("tools: this pipeline holds its text to a structure only without them", "tools")
        may = [each for each in self.tools if self.forced in (None, ANY, each["function"]["name"])]
        instead = None
        if self.forced is None and answer is not None:
            [(kind, instead)] = answer.items()
            if kind not in ("json_schema", "json_object"):
                raise invalid("tools: beside them a text can be held to JSON only", "tools")
        return {"grammar": calls_grammar(written, may, [*self.schemas], parallel=self.parallel, answer=instead)}

    def reader(self) -> ReplyReader:
        """Return a reader of one reply."""
        names = frozenset(tool["function"]["name"] for tool in self.tools)
        return ReplyReader(tool_reader(self.format, self.tools), names, self.schemas, parallel=self.parallel)


@define
class ReplyReader:
    """Reads texts and calls out of one reply. A call of a tool that the model was not shown is text; so is one that breaks a strict schema.

    Args:
        names: of the tools. schemas: of the strict ones. parallel: pass on several calls; otherwise what comes after the first is left out.
    """

    _reader: ToolReader
    _names: frozenset[str]
    _schemas: Mapping[str, StrictSchema] = field(factory=dict)
    _parallel: bool = field(kw_only=True)
    _called: bool = field(default=False, init=False)

    def read(self, text: str, *, last: bool = False) -> list[str | ToolCall]:
        """Take a piece of the reply; return texts and calls in their order. See :meth:`ToolReader.read`."""
        found: list[str | ToolCall] = []
        for each in self._reader.read(text, last=last):
            if self._called and not self._parallel:
                break
            if isinstance(each, ToolCall) and not self._is_valid(each):
                each = each.text
            self._called = self._called or isinstance(each, ToolCall)
            found.append(each)
        return found

    def _is_valid(self, call: ToolCall) -> bool:
        schema = self._schemas.get(call.name)
        return call.name in self._names and (schema is None or schema.accepts(call.arguments))


def call_deltas(index: int, call: ToolCall) -> list[dict[str, Any]]:
    """Return the deltas of a call in a stream: its name, then its arguments in pieces."""
    head = call.as_openai()
    head["function"] = {"name": call.name, "arguments": ""}
    pieces = argument_pieces(call)
    return [{"index": index, **head}, *({"index": index, "function": {"arguments": piece}} for piece in pieces)]


def argument_pieces(call: ToolCall) -> list[str]:
    """Return the arguments in pieces."""
    return [call.arguments[start : start + PIECE] for start in range(0, len(call.arguments), PIECE)]


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a tool as chat templates have it."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise invalid(f"{where}: {_FORM}", where, "invalid_value")
    check_fields(tool, ("type", "function"), where)
    where = f"{where}.function"
    check_fields(function, ("name", "description", "parameters", "strict"), where)
    name, made = function.get("name"), {}
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(
            f"{where}.name: must be 1 to 64 letters, digits, _ and -, is {shown(name)}",
            f"{where}.name",
            "invalid_value",
        )
    if function.get("strict") not in (None, True, False):
        raise invalid(f"{where}.strict: must be true or false", f"{where}.strict", "invalid_type")
    for key, kind, title in (("description", str, "text"), ("parameters", dict, "a JSON schema")):
        if (value := function.get(key)) is not None:
            if not isinstance(value, kind):
                raise invalid(f"{where}.{key}: must be {title}", f"{where}.{key}", "invalid_type")
            made[key] = value
    return {"type": "function", "function": {"name": name, **made}}


def _schemas(tools: Sequence[Mapping[str, Any]], read: Sequence[Mapping[str, Any]]) -> dict[str, StrictSchema]:
    """Return the schemas of the strict tools, which ``read`` has as chat templates have them. Raises ApiError 400."""
    found = {}
    for index, (tool, made) in enumerate(zip(tools, read, strict=True)):
        if tool["function"].get("strict"):
            where, function = f"tools[{index}].function", made["function"]
            if "parameters" not in function:
                raise invalid(f"{where}.strict: needs parameters", f"{where}.strict", "invalid_value")
            found[function["name"]] = StrictSchema(function["parameters"], f"{where}.parameters")
    return found


def _chosen(choice: str | Mapping[str, Any] | None, names: list[str]) -> tuple[list[str], str | None]:
    """Return the names of the tools that the model is shown, and the one that it must call."""
    where = "tool_choice"
    if choice is None or choice == "auto":
        return names, None
    if choice == "required":
        return names, ANY
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return names, _listed(choice, names, where)
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed, where = choice.get("allowed_tools"), f"{where}.allowed_tools"
        if not isinstance(allowed, Mapping):
            raise invalid(f"{where}: must be {{'mode': ..., 'tools': [...]}}", where, "invalid_type")
        if allowed.get("mode") not in ("auto", "required"):
            raise invalid(f"{where}.mode: must be auto or required", f"{where}.mode", "invalid_value")
        listed = allowed.get("tools")
        if not isinstance(listed, list) or not listed:
            raise invalid(f"{where}.tools: must be a list of tools", f"{where}.tools", "invalid_type")
        chosen = [_listed(each, names, f"{where}.tools[{index}]") for index, each in enumerate(listed)]
        return chosen, ANY if allowed["mode"] == "required" else None
    raise invalid(
        f"{where}: must be 'none', 'auto', 'required', a function or allowed_tools, is {shown(choice)}",
        where,
        "invalid_value",
    )


def _listed(given: Any, names: list[str], where: str) -> str:
    """Return the name of one of the tools."""
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise invalid(f"{where}: must be {{'type': 'function', 'function': {{'name': ...}}}}", where, "invalid_type")
    if name not in names:
        where = f"{where}.function.name"
        raise invalid(f"{where}: no tool is called {shown(name)}{did_you_mean(name, names)}", where, "invalid_value")
    return name
