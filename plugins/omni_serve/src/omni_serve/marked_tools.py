"""Readers of further forms in which models write calls of tools: each call begins with a mark."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import define, field

from omni_serve.tool_formats import INSIDE, Between, ToolCall, Written, made_call, overlap, read_call, read_object

MOST_FAILURES = 64
"""Beginnings of calls in one reply that were none; what follows is text, so that the work stays linear in the reply."""

_NAME = r"[\w.\-]+"


@define
class Marked(Between):
    """Reads calls that begin with one of ``marks``. What begins so and is no call is text. ``noise``: marks around calls, left out."""

    marks: ClassVar[tuple[str, ...]] = ()
    noise: ClassVar[tuple[str, ...]] = ()

    _rest: str = field(default="", init=False)  # what may be the beginning of a mark, or of a call
    _failures: int = field(default=0, init=False)

    @abstractmethod
    def span(self, text: str, *, last: bool) -> tuple[int, list[ToolCall]] | None:
        """Read what begins with a mark; return its length and its calls, none if it is no call. ``None``: more of it is needed.

        Args:
            last: there is no more.
        """

    def read(self, text: str, *, last: bool = False) -> list[str | ToolCall]:
        text, found = self._rest + text, list[str | ToolCall]()
        self._rest = ""
        while (mark := self.opening(text)) is not None:
            self._say(text[: mark.start()], found)
            text = text[mark.start() :]
            length, made = len(mark[0]), list[ToolCall]()
            if mark[0] not in self.noise:
                read = self.span(text, last=last)
                if read is None:
                    self._rest = text
                    return self._told(found, last=last)
                if made := read[1]:
                    length = read[0]
                    found += made
                    self._called = True
                else:
                    self._failures += 1
                    self._say(text[:length], found)
            text = text[length:]
        keep = 0 if last or self._failures >= MOST_FAILURES else self.held(text)
        self._say(text[: len(text) - keep], found)
        self._rest = text[len(text) - keep :]
        return self._told(found, last=last)

    def opening(self, text: str) -> re.Match[str] | None:
        """Return the first mark in a text."""
        every = "|".join(map(re.escape, (*self.marks, *self.noise)))
        return re.search(every, text) if self._failures < MOST_FAILURES else None

    def held(self, text: str) -> int:
        """Return how many characters at the end of a text may be the beginning of a mark."""
        return max(overlap(text, each) for each in (*self.marks, *self.noise))


@define
class Ended(Marked):
    """Calls that end with one of ``ends``. The end may be missing at the end of the reply."""

    ends: ClassVar[tuple[str, ...]] = ()

    _seen: int = field(default=0, init=False)  # characters of an open call in which no end begins

    @abstractmethod
    def call(self, text: str, whole: str) -> ToolCall | None:
        """Return the call that the text between the marks is. ``whole``: with the marks."""

    def span(self, text: str, *, last: bool) -> tuple[int, list[ToolCall]] | None:
        found = [(at, each) for each in self.ends if (at := text.find(each, self._seen)) >= 0]
        if not found and not last:
            self._seen = max(0, len(text) - max(map(len, self.ends)) + 1)
            return None
        self._seen = 0
        begin = next(each for each in self.marks if text.startswith(each))
        at, end = min(found, default=(len(text), ""))
        length = at + len(end)
        call = self.call(text[len(begin) : at], text[:length])
        return length, [] if call is None else [call]


@define
class _Tagged(Ended):
    """Arguments in tags, each a text, of which the tool's schema says what it is."""

    marks = ("<tool_call>",)
    ends = ("</tool_call>",)
    head: ClassVar[re.Pattern[str]]
    argument: ClassVar[re.Pattern[str]]

    def call(self, text: str, whole: str) -> ToolCall | None:
        head = self.head.match(text)
        if head is None:
            return None
        inner = text[head.end() :].rstrip().removesuffix("</function>")
        if self.argument.sub("", inner).strip():
            return None
        return made_call(head[1], dict(self._argument(head[1], *each) for each in self.argument.findall(inner)), whole)

    def _argument(self, tool: str, name: str, text: str) -> tuple[str, Any]:
        name = name.strip()
        for each in self.tools:
            if each["function"]["name"] == tool:
                properties = (each["function"].get("parameters") or {}).get("properties")
                return name, _typed(text, properties.get(name) if isinstance(properties, Mapping) else None)
        return name, text


class QwenXml(_Tagged):
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``: Qwen3-Coder, Qwen3.5."""

    head = re.compile(rf"\s*<function=({_NAME})>")
    argument = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class GlmXml(_Tagged):
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``: GLM 4.5 and later."""

    head = re.compile(rf"\s*({_NAME})\s*(?=<arg_key>|\Z)")
    argument = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def _typed(text: str, schema: Any) -> Any:
    """Return an argument by its schema; a text where that allows one, or says nothing."""
    kinds = set(_kinds(schema))
    if "null" in kinds and text.strip() in ("null", "None"):
        return None
    if not kinds - {"null"} or "string" in kinds:
        return text
    try:
        return json.loads({"True": "true", "False": "false"}.get(text.strip(), text), strict=False)
    except (ValueError, RecursionError):
        return text


def _kinds(schema: Any) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    kinds = schema.get("type")
    found = [each for each in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(each, str)]
    several = [schema[name] for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list)]
    return found + [kind for choices in several for each in choices for kind in _kinds(each)]


class Gemma(Ended):
    """``<start_function_call>call:NAME{key:<escape>text<escape>,n:1}<end_function_call>``: FunctionGemma; Gemma 4 with marks of its own."""

    marks = ("<start_function_call>", "<|tool_call>")
    ends = ("<end_function_call>", "<tool_call|>")

    _head = re.compile(rf"\s*call:({_NAME})(\{{.*\}})\s*", re.DOTALL)

    def call(self, text: str, whole: str) -> ToolCall | None:
        head = self._head.fullmatch(text)
        if head is None:
            return None
        parts = re.split(r'<escape>|<\|"\|>', head[2])
        keyed = (re.sub(r"(?<=[{,])\s*([\w\-]+)\s*:", r'"\1":', each) for each in parts[::2])
        texts = [*map(json.dumps, parts[1::2]), ""]
        arguments = read_object("".join(each for pair in zip(keyed, texts, strict=False) for each in pair))
        return made_call(head[1], arguments, whole)


class Deepseek(Ended):
    """``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>``: DeepSeek V3.1; V3 and R1 write more around it."""

    marks = ("<｜tool▁call▁begin｜>",)
    ends = ("<｜tool▁call▁end｜>",)
    noise = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

    _block = re.compile(rf"\s*\w+<｜tool▁sep｜>({_NAME})\s*```(?:json)?\s*(\{{.*\}})\s*(?:```)?\s*", re.DOTALL)
    _plain = re.compile(rf"\s*({_NAME})<｜tool▁sep｜>(.*)", re.DOTALL)

    def call(self, text: str, whole: str) -> ToolCall | None:
        found = self._block.fullmatch(text) or self._plain.fullmatch(text)
        return None if found is None else made_call(found[1], read_object(found[2]), whole)


class Harmony(Ended):
    """``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``: gpt-oss, also with the recipient in front."""

    marks = ("<|start|>", "<|channel|>")
    ends = ("<|call|>", "<|end|>", "<|return|>")

    def call(self, text: str, whole: str) -> ToolCall | None:
        head, _, arguments = text.partition("<|message|>")
        name = re.search(rf"\bto=functions\.({_NAME})", head)
        return None if name is None else made_call(name[1], read_object(arguments or "{}"), whole)


_PLAIN = re.compile(r"[ \t\r\n:,+\-.0-9eEtrufalsn]*+")


@define
class _Json:
    """Finds the end of the JSON object or list at ``at`` of a text that grows. Each character is looked at once."""

    at: int
    _depth: int = 0
    _inside: bool = False  # of a string

    def end(self, text: str) -> int | None:
        """Return where it ends, -1 if it is no JSON; ``None``: it goes on."""
        while True:
            pattern = INSIDE if self._inside else _PLAIN
            self.at = _past(pattern, text, self.at)
            if self.at == len(text):
                return None
            each = text[self.at]
            if each == "\\" and self._inside:  # the rest of an escape is missing
                return None
            if each not in '"{}[]':
                return -1
            self.at += 1
            if each == '"':
                self._inside = not self._inside
            else:
                self._depth += 1 if each in "{[" else -1
                if self._depth <= 0:
                    return self.at


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None
    return found.end()


@define
class _Jsons(Marked):
    """Calls without a mark at their end: they end with their JSON."""

    _json: _Json | None = field(default=None, init=False)

    def _end(self, text: str, begin: int, *, last: bool) -> int | None:
        """Return where the JSON at ``begin`` ends, -1 if nowhere; ``None``: more of it is needed."""
        if self._json is None:
            self._json = _Json(begin)
        end = self._json.end(text)
        if end is not None or last:
            self._json = None
        return -1 if end is None and last else end


_MOST_HEAD = 200
"""Characters of what is between a mark and the arguments."""


@define
class ListedJson(_Jsons):
    """``[TOOL_CALLS]`` before a list of ``{"name": ..., "arguments": ...}``, or before ``NAME[ARGS]{...}``: Mistral. Granite and Phi write
    ``<|tool_call|>`` before a list.
    """

    written = Written('{"name": "', '", "arguments": ', "}", ", ", "[TOOL_CALLS][", "]")
    marks = ("[TOOL_CALLS]", "<|tool_call|>")
    noise = ("<|/tool_call|>",)

    _named = re.compile(rf"\s*({_NAME})\s*(?:\[CALL_ID\]\s*[\w\-]+\s*)?(?:\[ARGS\]\s*)?(?=\{{)")
    _head = re.compile(r"\s*[\w.\-]*\s*(?:\[[A-Z_\]]*\s*[\w\-\]]*\s*)*")

    def span(self, text: str, *, last: bool) -> tuple[int, list[ToolCall]] | None:
        begin = len(next(each for each in self.marks if text.startswith(each)))
        named = self._named.match(text[: begin + _MOST_HEAD], begin)
        at = named.end() if named is not None else begin + len(text[begin:]) - len(text[begin:].lstrip())
        if named is None and text[at : at + 1] not in ("[", "{"):
            is_head = len(text) < begin + _MOST_HEAD and self._head.fullmatch(text, begin) is not None
            return None if is_head and not last else (begin, [])
        end = self._end(text, at, last=last)
        if end is None or end < 0:
            return None if end is None else (begin, [])
        if named is not None:
            call = made_call(named[1], read_object(text[at:end]), text[:end])
            return end, [] if call is None else [call]
        return end, _listed(text[:end], at)


def _listed(text: str, begin: int) -> list[ToolCall]:
    """Return the calls of a list of objects, or of one, that begins at ``begin``; none if one of them is no call."""
    found, start, at = list[ToolCall](), 0, begin + (text[begin] == "[")
    while (at := _past(re.compile(r"[\s,]*+"), text, at)) < len(text) and text[at] == "{":
        end = _Json(at).end(text)
        if end is None or end < 0:
            return []
        whole = text[start:] if not text[end:].strip(" \t\r\n]") else text[start:end]
        call = read_call(text[at:end], whole)
        if call is None:
            return []
        found.append(call)
        start = at = end
    return found if text[at:].strip() in ("", "]") else []


@define
class LlamaJson(_Jsons):
    """``{"name": ..., "parameters": {...}}`` at the beginning of a reply or behind ``<|python_tag|>``; several with ``;`` between."""

    written = Written('{"name": "', '", "parameters": ', "}", "; ")
    marks = ("<|python_tag|>",)

    _fresh: bool = field(default=True, init=False)  # a call may begin here

    _start = re.compile(r"\s*;?\s*\{")

    def opening(self, text: str) -> re.Match[str] | None:
        found = self._start.match(text) if self._fresh and self._failures < MOST_FAILURES else None
        return found or Marked.opening(self, text)

    def held(self, text: str) -> int:
        return len(text) if self._fresh and re.fullmatch(r"\s*;?\s*", text) else Marked.held(self, text)

    def span(self, text: str, *, last: bool) -> tuple[int, list[ToolCall]] | None:
        rest = text.removeprefix(self.marks[0]).lstrip(" \t\r\n;")
        if not rest and not last:
            return None
        begin = len(text) - len(rest)
        end = self._end(text, begin, last=last) if rest.startswith("{") else -1
        if end is None:
            return None
        data = read_object(text[begin:end]) if end > 0 else None
        call = (
            None
            if data is None or not {"parameters", "arguments"} & set(data)
            else read_call(text[begin:end], text[:end])
        )
        self._fresh = call is not None
        return end, [] if call is None else [call]

    def _say(self, text: str, found: list[str | ToolCall]) -> None:
        self._fresh = self._fresh and not text.strip()
        Marked._say(self, text, found)
