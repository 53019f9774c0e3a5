"""Calls of tools in a model's text. The chat template writes the tools into the prompt; here the calls are read out of the reply.

A pipeline declares the format that its model was trained on, by name, or a reference to a subclass of :class:`ToolReader`.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from itertools import groupby
from typing import Any

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


# Pieces of JSON outside of strings, and inside of them; possessive, so that nothing is kept for another try.
_OUTSIDE = re.compile(r"[ \t\r\n{}\[\]:,+\-.0-9eEtrufalsn]*+")
_INSIDE = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)


@define
class TaggedJson(ToolReader):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: the format of Qwen and of Hermes.

    What is between the tags and is no call stays in the text. White space next to calls is kept between texts only: a reply that
    consists of calls has no text. A call whose closing tag is missing at the end of the reply counts if its JSON is whole.

    The work is linear in the reply: JSON is parsed at a closing tag outside of its strings only, and given up at the first character
    that JSON has not. Of two opening tags that may both still begin a call, one is in a string as seen from the other, so that a third is
    outside of strings for one of them, and ends it.
    """

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    _open: bool = False
    _past: list[str] = field(factory=list)  # of an open call: what earlier pieces had of it
    _inside: bool = False  # of a string
    _rest: str = ""  # of the last piece: what may be a part of a tag, or of an escape
    _white: str = ""
    _called: bool = False

    def read(self, text: str, *, last: bool = False) -> list[str | ToolCall]:
        found: list[str | ToolCall] = []
        self._read(text, found, last=last)
        joined: list[str | ToolCall] = []
        for kind, each in groupby(found, type):
            parts: list[Any] = list(each)
            joined += ["".join(parts)] if kind is str else parts
        return joined

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
                call = _call(inner, self.begin + inner + tail)
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
        keep = 0 if last else _overlap(text[at:][-len(self.begin) :], self.begin)
        self._say(text[at : len(text) - keep], found)
        self._rest = text[len(text) - keep :]
        if last and not self._called and self._white:
            found.append(self._white)

    def _scan(self, text: str, at: int) -> tuple[int, bool | None]:
        """Read on in the JSON of a call; return the place of its end, and if it may be a call: ``None``: that is not known yet."""
        while True:
            if self._inside:
                at = _end(_INSIDE, text, at)
                if at == len(text) or text[at] != '"':  # the rest of an escape is missing
                    return at, None
                self._inside = False
                at += 1
            at = _end(_OUTSIDE, text, at)
            if text.startswith('"', at):
                self._inside = True
                at += 1
            else:
                tail = text[at : at + len(self.end)]
                return at, None if len(tail) < len(self.end) and self.end.startswith(tail) else tail == self.end

    def _say(self, text: str, found: list[str | ToolCall]) -> None:
        """Pass text on, but for the white space at its end, which may be next to a call."""
        kept = text.rstrip()
        if kept:
            found += [self._white, kept] if self._white else [kept]
            self._white = ""
        self._white += text[len(text.rstrip()) :]


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where what a pattern matches from ``at`` on ends; it matches nothing, too."""
    found = pattern.match(text, at)
    assert found is not None
    return found.end()


def _call(text: str, whole: str) -> ToolCall | None:
    data = _object(text)
    if data is None or not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", data.get("parameters"))
    if arguments is None:
        arguments = {}
    elif isinstance(arguments, str):  # encoded twice
        arguments = _object(arguments)
    written = _dumps(arguments) if isinstance(arguments, dict) else None
    return ToolCall(data["name"], written, whole) if written is not None else None


def _object(text: str) -> dict[str, Any] | None:
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
