"""Calls of tools in a model's text. The chat template writes the tools into the prompt; here the calls are read out of the reply.

A pipeline declares the format that its model was trained on, by name, or a reference to a class with the methods of :class:`ToolReader`.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Protocol

from attrs import define, field, frozen

from omni_core.errors import ConfigError, did_you_mean
from omni_core.references import load


@frozen
class ToolCall:
    """A call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str
    identity: str = field(factory=lambda: f"call_{secrets.token_hex(12)}")

    def as_openai(self) -> dict[str, Any]:
        """Return it in OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.identity, "type": "function", "function": function}


class ToolReader(Protocol):
    """Takes the pieces of a reply; returns the text that is no part of a call, and the calls that are complete."""

    def feed(self, text: str) -> tuple[str, list[ToolCall]]: ...

    def finish(self) -> tuple[str, list[ToolCall]]: ...


@define
class TaggedJson:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: the format of Qwen and of Hermes.

    What is between the tags and is no call stays in the text.
    """

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    _held: str = ""

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        self._held += text
        said = ""
        calls: list[ToolCall] = []
        while True:
            start = self._held.find(self.begin)
            if start < 0:
                keep = _overlap(self._held, self.begin)
                cut = len(self._held) - keep
                said, self._held = said + self._held[:cut], self._held[cut:]
                return said, calls
            stop = self._held.find(self.end, start)
            if stop < 0:
                said, self._held = said + self._held[:start], self._held[start:]
                return said, calls
            said += self._held[:start]
            inner = self._held[start + len(self.begin) : stop]
            call = _call(inner)
            if call is None:
                said += self._held[start : stop + len(self.end)]
            else:
                calls.append(call)
            self._held = self._held[stop + len(self.end) :]

    def finish(self) -> tuple[str, list[ToolCall]]:
        """Return what was held back. A call that was cut off at its end is text, unless only the closing tag is missing."""
        held, self._held = self._held, ""
        call = _call(held.removeprefix(self.begin)) if held.startswith(self.begin) else None
        return ("", [call]) if call is not None else (held, [])


def _call(text: str) -> ToolCall | None:
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", data.get("parameters", {}))
    return ToolCall(data["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of ``mark``."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)


FORMATS = {"tagged-json": TaggedJson}


def tool_reader(name: str) -> ToolReader:
    """Return a new reader of a format.

    Raises:
        ConfigError: the pipeline declares a format that there is not.
    """
    if name in FORMATS:
        return FORMATS[name]()
    if ":" not in name:
        raise ConfigError(f"interface.tool_format: no format is called {name!r}{did_you_mean(name, FORMATS)}")
    made: ToolReader = load(name)()
    return made
