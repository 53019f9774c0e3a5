"""Calls of tools in a model's text. The chat template writes the tools into the prompt; here the calls are read out of the reply.

A pipeline declares the format that its model was trained on, by name, or a reference to a subclass of :class:`ToolReader`.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

from attrs import define, field, frozen

from omni_core.api import ConfigError, did_you_mean, load


@frozen
class ToolCall:
    """A call: the tool's name, its arguments as the JSON text of an object, and ``text``: the whole as the model has written it."""

    name: str
    arguments: str
    text: str = ""
    identity: str = field(factory=lambda: f"call_{secrets.token_hex(12)}")

    def as_openai(self) -> dict[str, Any]:
        """Return it in OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.identity, "type": "function", "function": function}


@frozen
class Written:
    """The form of calls that are JSON: ``begin``, calls with ``between`` between them, ``end``. A call is ``before``, its name,
    ``middle``, its arguments as JSON, ``after``.
    """

    before: str
    middle: str
    after: str
    between: str
    begin: str = ""
    end: str = ""


class ToolReader(ABC):
    """Reads the calls out of one reply, which comes in pieces. How it is cut into pieces must not matter.

    Attributes:
        tools: that the model was shown, in OpenAI's form: formats without types read the types of arguments from their schemas.
        written: how the model writes calls, of formats that a reply can be held to; ``None``: it cannot.
    """

    written: ClassVar[Written | None] = None

    tools: Sequence[Mapping[str, Any]] = ()

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


# Pieces of JSON outside of strings, and inside of them; possessive, so that nothing is kept for another try.
OUTSIDE = re.compile(r"[ \t\r\n{}\[\]:,+\-.0-9eEtrufalsn]*+")
INSIDE = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)


@define
class Between(ToolReader):
    """Passes the texts between calls on. White space next to calls is kept between texts only: a reply of calls has no text."""

    _white: str = field(default="", init=False)
    _called: bool = field(default=False, init=False)

    def _say(self, text: str, found: list[str | ToolCall]) -> None:
        """Pass text on, but for the white space at its end, which may be next to a call."""
        kept = text.rstrip()
        if kept:
            found += [self._white, kept] if self._white else [kept]
            self._white = ""
        self._white += text[len(kept) :]

    def _told(self, found: list[str | ToolCall], *, last: bool) -> list[str | ToolCall]:
        """Return what was found, neighbouring texts joined."""
        if last and not self._called and self._white:
            found.append(self._white)
        joined: list[str | ToolCall] = []
        for kind, each in groupby(found, type):
            parts: list[Any] = list(each)
            joined += ["".join(parts)] if kind is str else parts
        return joined


@define
class TaggedJson(Between):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: the format of Qwen and of Hermes.

    What is between the tags and is no call stays in the text. A call whose closing tag is missing at the end of the reply counts if
    its JSON is whole.

    The work is linear in the reply: JSON is parsed at a closing tag outside of its strings only, and given up at the first character
    that JSON has not. Of two opening tags that may both still begin a call, one is in a string as seen from the other, so that a third is
    outside of strings for one of them, and ends it.
    """

    written = Written('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n")

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    _open: bool = False
    _past: list[str] = field(factory=list)  # of an open call: what earlier pieces had of it
    _inside: bool = False  # of a string
    _rest: str = ""  # of the last piece: what may be a part of a tag, or of an escape

    def read(self, text: str, *, last: bool = False) -> list[str | ToolCall]:
        found: list[str | ToolCall] = []
        self._read(text, found, last=last)
        return self._told(found, last=last)

    def _read(self, text: str, found: list[str | ToolCall], *, last: bool) -> None:
        text, at, first = self._rest + text, 0, 0
        self._rest = ""
        while self._open or (tag := text.find(self.begin, at)) >= 0:
            if not self._open:
                self._say(text[at:tag], found)
                at = first = tag + len(self.begin)
                self._open, self._inside, self._past = True, False, []
            at, is_over = self._scan(text, at)
            if is_over is None and not last:
                self._past.append(text[first:at])
                self._rest = text[at:]
                return
            call = None
            if is_over is not False:
                inner = "".join((*self._past, text[first:at]))
                tail = text[at : at + len(self.end)]
                call = read_call(inner, self.begin + inner + tail)
            self._open = False
            if call is not None:
                found.append(call)
                self._called = True
                at += len(tail)
            else:  # no call: the tag is text, and what follows it is read again
                self._say(self.begin, found)
                if self._past:
                    text, first = "".join((*self._past, text[first:])), 0
                at = first
        keep = 0 if last else overlap(text[at:][-len(self.begin) :], self.begin)
        self._say(text[at : len(text) - keep], found)
        self._rest = text[len(text) - keep :]

    def _scan(self, text: str, at: int) -> tuple[int, bool | None]:
        """Read on in the JSON of a call; return the place of its end, and if it may be a call: ``None``: that is not known yet."""
        while True:
            if self._inside:
                at = _end(INSIDE, text, at)
                if at == len(text) or text[at] != '"':  # the rest of an escape is missing
                    return at, None
                self._inside = False
                at += 1
            at = _end(OUTSIDE, text, at)
            if text.startswith('"', at):
                self._inside = True
                at += 1
            else:
                tail = text[at : at + len(self.end)]
                return at, None if len(tail) < len(self.end) and self.end.startswith(tail) else tail == self.end


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where what a pattern matches from ``at`` on ends; it matches nothing, too."""
    found = pattern.match(text, at)
    assert found is not None
    return found.end()


def read_call(text: str, whole: str) -> ToolCall | None:
    """Return the call that the JSON text of an object with a name and arguments is. ``whole``: as the model has written it."""
    data = read_object(text)
    if data is None or not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", data.get("parameters"))
    if arguments is None:
        arguments = {}
    elif isinstance(arguments, str):  # encoded twice
        arguments = read_object(arguments)
    return made_call(data["name"], arguments, whole)


def made_call(name: str, arguments: Any, whole: str) -> ToolCall | None:
    """Return a call; ``None`` if its arguments are no object of JSON."""
    written = _dumps(arguments) if isinstance(arguments, dict) else None
    return ToolCall(name, written, whole) if written is not None else None


def read_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text is; ``None`` if it is none. Line breaks in its strings are taken: models write some."""
    try:
        data = json.loads(text, strict=False)
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


def overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of ``mark``."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)


FORMATS = {
    "tagged-json": "omni_serve.tool_formats:TaggedJson",
    **{
        name: f"omni_serve.marked_tools:{kind}"
        for name, kind in {
            "qwen-xml": "QwenXml",
            "glm-xml": "GlmXml",
            "llama-json": "LlamaJson",
            "listed-json": "ListedJson",
            "gemma": "Gemma",
            "deepseek": "Deepseek",
            "harmony": "Harmony",
        }.items()
    },
}
"""The readers of the formats that have a name."""


def tool_reader(name: str, tools: Sequence[Mapping[str, Any]] = ()) -> ToolReader:
    """Return a new reader of a format.

    Args:
        tools: that the model is shown, in OpenAI's form.

    Raises:
        ConfigError: the pipeline declares a format that there is not.
    """
    if ":" not in name and name not in FORMATS:
        raise ConfigError(f"interface.tool_format: no format is called {name!r}{did_you_mean(name, FORMATS)}")
    made: ToolReader = load(FORMATS.get(name, name))()
    made.tools = tools
    return made
