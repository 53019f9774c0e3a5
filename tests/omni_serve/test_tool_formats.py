"""Calls of tools are read out of a text that arrives in any pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.errors import ConfigError
from omni_serve.tool_formats import TaggedJson, ToolCall, tool_reader

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"a": "</b> <c"}}\n</tool_call>'


def read(pieces: list[str]) -> tuple[str, list[ToolCall]]:
    reader, said, calls = TaggedJson(), "", []
    for piece in pieces:
        text, found = reader.feed(piece)
        said, calls = said + text, calls + found
    text, found = reader.finish()
    return said + text, calls + found


@given(st.lists(st.integers(1, 12), max_size=30))
def test_pieces_do_not_matter(sizes: list[int]) -> None:
    text = f"I look < it up.{CALL} And <tool {CALL}. Done"
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    said, calls = read([*pieces, rest])
    assert said == "I look < it up. And <tool . Done"
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("look_up", {"a": "</b> <c"})] * 2
    assert len({call.identity for call in calls}) == 2


def test_text_is_not_held_back_longer_than_it_must() -> None:
    assert TaggedJson().feed("a < b") == ("a < b", [])
    assert TaggedJson().feed("a <tool") == ("a ", [])


@pytest.mark.parametrize(
    "text", ["<tool_call>no json</tool_call>", '<tool_call>{"a": 1}</tool_call>', "<tool_call>{", "<tool_"]
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read([text]) == (text, [])


def test_a_missing_closing_tag() -> None:
    said, calls = read([CALL.removesuffix("</tool_call>")])
    assert (said, calls[0].name) == ("", "look_up")


def test_formats_by_name_and_by_reference() -> None:
    assert isinstance(tool_reader("tagged-json"), TaggedJson)
    assert isinstance(tool_reader("omni_serve.tool_formats:TaggedJson"), TaggedJson)
    with pytest.raises(ConfigError, match="did you mean 'tagged-json'"):
        tool_reader("tagged-jsno")
