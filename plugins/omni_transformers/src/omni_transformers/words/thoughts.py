"""Tells what a model thinks from what it answers, in a text that comes in pieces. How it is cut into pieces does not matter."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any

from attrs import define, field

Parts = list[tuple[bool, str]]
"""Texts in order, and if each is thought; an empty thought says that there was none where one may be."""


class Splitter(ABC):
    """Reads one reply."""

    thinks: bool = False
    """True while what comes is thought."""

    @abstractmethod
    def read(self, text: str, *, last: bool = False) -> Parts:
        """Take a piece. ``last``: the reply ends with it."""


@define
class Unsplit(Splitter):
    """Of a model that tells no thoughts."""

    def read(self, text: str, *, last: bool = False) -> Parts:
        return [(False, text)]


@define
class Tagged(Splitter):
    """Thoughts between two marks, at the beginning of a reply; elsewhere the marks are text.

    Args:
        thinks: the prompt ends with the first mark.
    """

    _begin: str
    _end: str
    thinks: bool = False
    _over: bool = False
    _rest: str = ""

    def read(self, text: str, *, last: bool = False) -> Parts:
        if self._over:
            return [(False, text)]
        text, self._rest = self._rest + text, ""
        found: Parts = []
        if not self.thinks:
            start = text.lstrip()
            if start.startswith(self._begin):
                self.thinks, text = True, start[len(self._begin) :]
                found.append((True, ""))
            elif last or not self._begin.startswith(start):
                self._over = True
                return [(False, text)]
            else:
                self._rest = text
                return []
        thought, mark, text = text.partition(self._end)
        if mark:
            self.thinks, self._over = False, True
            return [*found, (True, thought), (False, text)]
        held = 0 if last else _overlap(thought, self._end)
        self._rest = thought[len(thought) - held :]
        return [*found, (True, thought[: len(thought) - held])]


_NEXT = re.compile(r"<\|(?:start|channel)\|>")
_ENDS = re.compile(r"<\|(?:end|return|call|start|channel)\|>")


@define
class Channels(Splitter):
    """Messages of gpt-oss, ``<|channel|>NAME<|message|>TEXT<|end|>``: of the channel ``analysis`` they are thoughts. Calls stay whole."""

    thinks: bool = False
    _calls: bool = False
    _inside: bool = False  # of the text of a message
    _rest: str = ""

    def read(self, text: str, *, last: bool = False) -> Parts:
        text, self._rest = self._rest + text, ""
        found: Parts = []
        while text:
            end = (_ENDS if self._inside else _NEXT).search(text)
            if self._inside or end is None or end.start():
                stop = end.start() if end is not None else len(text) - (0 if last else _open_mark(text))
                found.append((self.thinks, text[:stop]))
                if end is None:
                    self._rest = text[stop:]
                    break
                closes = self._inside and end[0] not in ("<|start|>", "<|channel|>")
                if closes and self._calls:
                    found.append((False, end[0]))
                text = text[end.end() if closes else end.start() :]
                self._inside = self.thinks = self._calls = False
                continue
            head, mark, rest = text.partition("<|message|>")
            if not mark:
                self._rest = "" if last else text
                break
            self._inside, self._calls = True, re.search(r"\bto=", head) is not None
            self.thinks = not self._calls and re.search(r"<\|channel\|>\s*analysis\b", head) is not None
            found.append((self.thinks, head + mark if self._calls else ""))
            text = rest
        return found


def _open_mark(text: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return max(_overlap(text, f"<|{each}|>") for each in ("start", "channel", "end", "return", "call"))


def _overlap(text: str, mark: str) -> int:
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)


class ByTemplate(Splitter):
    """By the response template of the tokenizer. Calls are written as tagged JSON; a reply that breaks the template is text from there on.

    Args:
        prompt: with its special tokens.
    """

    def __init__(self, template: dict[str, Any], prompt: str) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser: Any = ResponseParser(template, prefix=prompt)
        self._raw = self._held = ""  # of a call: what the parser has told of it; and what it has not told yet
        for event in self._parser.initial_events:
            self._take(event)

    def _take(self, event: dict[str, Any]) -> Parts:
        kind, name = event["type"], event["field"]
        is_thought = name in ("reasoning_content", "thinking", "reasoning")
        if kind == "region_open":
            self.thinks, self._raw, self._held = is_thought, "", ""
            return [(True, "")] if is_thought else []
        if kind == "region_close":
            self.thinks, self._held = False, ""
            return [(False, _tagged(event["value"]))] if name == "tool_calls" else []
        self._raw += event["text"] if event["dirty"] else ""
        self._held = self._held[len(event["text"]) :]
        return [(is_thought, event["text"])] if is_thought or name == "content" else []

    def read(self, text: str, *, last: bool = False) -> Parts:
        found: Parts = []
        for index, each in enumerate(
            text if self._parser is not None else ""
        ):  # each alone: whatever the pieces, it breaks at one place
            self._held += each
            try:
                for event in self._parser.feed(each):
                    found += self._take(event)
            except Exception:
                self._parser, text = None, self._raw + self._held + text[index + 1 :]
                return [*found, (False, text)]
        if self._parser is None:
            return [(False, text)]
        try:
            for event in self._parser.finalize()[1] if last else ():
                found += self._take(event)
        except Exception:
            found.append((False, self._raw + self._held))
        return found


def _tagged(value: Any) -> str:
    """Return calls, as a response template gives them, as tagged JSON."""
    if isinstance(value, list):
        return "".join(map(_tagged, value))
    call = value.get("function", value) if isinstance(value, dict) else value
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


@define
class Told:
    """The thoughts and the text of one reply so far. White space around thoughts belongs to neither.

    Attributes:
        tokens: that were thought.
    """

    _splitter: Splitter
    text: str = field(default="", init=False)
    thoughts: str = field(default="", init=False)
    tokens: int = field(default=0, init=False)
    _white: str = field(default="", init=False)
    _strips: bool = field(default=False, init=False)  # white space in front of text
    _begins: bool = field(default=True, init=False)  # a run of thoughts

    @property
    def thinks(self) -> bool:
        """True while what comes is thought."""
        return self._splitter.thinks

    def read(self, text: str, *, last: bool = False) -> Parts:
        """Take a token's text; return what it adds, without empty texts."""
        found: Parts = []
        for is_thought, each in self._splitter.read(text, last=last):
            said = self._thought(each) if is_thought else self._said(each)
            if said and found and found[-1][0] == is_thought:
                found[-1] = is_thought, found[-1][1] + said
            elif said:
                found.append((is_thought, said))
        self.tokens += self._splitter.thinks and not last
        return found

    def _thought(self, text: str) -> str:
        if self._begins:
            text = text.lstrip()
            self._white = "\n" if self.thoughts else ""
        self._strips, self._begins = True, self._begins and not text
        kept = text.rstrip()
        if not kept:
            self._white += text
            return ""
        said, self._white = self._white + kept, text[len(kept) :]
        self.thoughts += said
        return said

    def _said(self, text: str) -> str:
        text = text.lstrip() if self._strips else text
        if text:
            self._strips, self._begins = False, True
            self.text += text
        return text
