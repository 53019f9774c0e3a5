"""Calls of tools in a model's text. The chat template writes the tools into the prompt; here the calls are read out of the reply.

A pipeline declares the format that its model was trained on, by name, or a reference to a subclass of :class:`ToolReader`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from attrs import define, field, frozen

from omni_core.errors import ConfigError, did_you_mean
from omni_core.references import load
from omni_serve.identities import random_hex


@frozen
class ToolCall:
    """A call: the tool's name, its arguments as the JSON text of an object, and ``text``: the whole as the model has written it."""

    name: str
    arguments: str
    text: str = ""
    identity: str = field(factory=lambda: f"call_{random_hex(12)}")

    def as_openai(self) -> dict[str, Any]:
        """Return it in OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.identity, "type": "function", "function": function}


class ToolReader(ABC):
    """Reads the calls out of one reply, which comes in pieces. How it is cut into pieces must not matter."""

    @abstractmethod
    def read(self, text: str, *, last: bool = False) -> list[str | ToolCall]:
        """Take a piece of the reply; return texts that belong to no call and whole calls, in the order of the reply.

        A call is returned when it is complete: what a client has been told of it cannot be taken back. What is no call in the end stays
        text; no text of a model raises.

        Args:
            last: the reply ends with this piece: return what was held back.
        """

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Return what :meth:`read` returns, as the joined texts and the calls."""
        return _sorted(self.read(text))

    def finish(self) -> tuple[str, list[ToolCall]]:
        """Return what was held back, likewise."""
        return _sorted(self.read("", last=True))


def _sorted(found: list[str | ToolCall]) -> tuple[str, list[ToolCall]]:
    texts = "".join(each for each in found if isinstance(each, str))
    return texts, [each for each in found if isinstance(each, ToolCall)]


@define
class TaggedJson(ToolReader):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: the format of Qwen and of Hermes.

    What is between the tags and is no call stays in the text. White space next to calls is kept between texts only: a reply that
    consists of calls has no text. A call whose closing tag is missing at the end of the reply counts if its JSON is whole.
    """

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    _held: str = ""
    _white: str = ""
    _called: bool = False
    _searched: int = 0

    def read(self, text: str, *, last: bool = False) -> list[str | ToolCall]:
        self._held += text
        found: list[str | ToolCall] = []
        while (start := self._held.find(self.begin)) >= 0:
            if start:
                self._say(self._held[:start], found)
                self._cut(start)
            call = self._call(last=last)
            if call is None:
                return found
            if isinstance(call, ToolCall):
                found.append(call)
                self._called = True
                self._cut(len(call.text))
            else:  # no call: the tag is text, and what follows it is read again
                self._say(self.begin, found)
                self._cut(len(self.begin))
        keep = 0 if last else _overlap(self._held, self.begin)
        cut = len(self._held) - keep
        self._say(self._held[:cut], found)
        self._cut(cut)
        if last and not self._called and self._white:
            found.append(self._white)
        return found

    def _cut(self, count: int) -> None:
        self._held, self._searched = self._held[count:], 0

    def _say(self, text: str, found: list[str | ToolCall]) -> None:
        """Pass text on, but for the white space at its end, which may be next to a call."""
        kept = text.rstrip()
        if kept:
            kept, self._white = self._white + kept, ""
            if found and isinstance(found[-1], str):
                found[-1] += kept
            else:
                found.append(kept)
        self._white += text[len(text.rstrip()) :]

    def _call(self, *, last: bool) -> ToolCall | bool | None:
        """Return the call that what is held begins with; ``False``: it is none; ``None``: that is not known yet."""
        head, tail = len(self.begin), len(self.end)
        while True:
            stop = self._held.find(self.end, max(head, self._searched))
            if stop < 0:
                self._searched = max(head, len(self._held) - tail + 1)
                return None if not last else _call(self._held[head:], self._held) or False
            inner = self._held[head:stop]
            if call := _call(inner, self._held[: stop + tail]):
                return call
            if not _in_string(inner):
                return False
            self._searched = stop + tail  # the tag is in a string of the JSON


def _call(text: str, whole: str) -> ToolCall | None:
    data = _object(text)
    if data is None or not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", data.get("parameters", {}))
    if isinstance(arguments, str):  # encoded twice
        arguments = _object(arguments)
    written = _dumps(arguments) if isinstance(arguments, dict) else None
    return ToolCall(data["name"], written, whole) if written is not None else None


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text is; ``None`` if it is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _dumps(arguments: dict[str, Any]) -> str | None:
    """Return JSON text; ``None`` if it has numbers that JSON has not.

    Letters stay as they are, unless they are halves of surrogate pairs, which no encoding has.
    """
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return text if text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text) else json.dumps(arguments)


def _in_string(text: str) -> bool:
    """Return whether JSON text ends inside of a string."""
    inside = escaped = False
    for each in text:
        if escaped:
            escaped = False
        elif each == "\\" and inside:
            escaped = True
        elif each == '"':
            inside = not inside
    return inside


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
