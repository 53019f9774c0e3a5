"""Calls of tools are read out of a text that arrives in any pieces."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omni_core.errors import ConfigError
from omni_serve.tool_formats import TaggedJson, ToolCall, tool_reader

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"a": "</b> <c"}}\n</tool_call>'

Found = list[str | tuple[str, str]]


def read(pieces: list[str]) -> Found:
    """Return texts and calls in order; neighbouring texts are joined, because pieces do not matter."""
    reader, found = TaggedJson(), Found()
    for number, piece in enumerate(pieces):
        for each in reader.read(piece, last=number == len(pieces) - 1):
            if isinstance(each, ToolCall):
                found.append((each.name, each.arguments))
            elif found and isinstance(found[-1], str):
                found[-1] += each
            else:
                found.append(each)
    return found


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


# Anything that JSON can say, and what looks like tags inside of it.
values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text()
    | st.sampled_from(["</tool_call>", '"</tool_call>', "\\", "<tool_call>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
names = st.text("abc_", min_size=1, max_size=5)
calls = st.builds(
    lambda name, arguments, indent: (
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, indent=indent)}</tool_call>"
    ),
    names,
    st.dictionaries(st.text(max_size=3), values, max_size=3) | values,
    st.sampled_from([None, 1]),
)
scraps = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<tool", "<", '"', "{", "}", "\\", " ", "\n", "a", '{"name": "f"}', "é"]
)
replies = st.lists(scraps | calls | calls.map(lambda call: call.replace("}", "", 1)), max_size=8).map("".join)


@given(replies, st.lists(st.integers(0, 9), max_size=60))
@example(f"I look < it up.{CALL} And <tool {CALL}. Done", [1] * 60)
@example('<tool_call>{"name": "</tool_call>', [3] * 20)
def test_pieces_do_not_matter_and_nothing_is_lost(text: str, sizes: list[int]) -> None:
    whole = read([text])
    assert read(cut(text, sizes)) == whole
    reader = TaggedJson()
    parts = [each if isinstance(each, str) else each.text for each in reader.read(text, last=True)]
    assert "".join("".join(parts).split()) == "".join(text.split())
    for each in whole:
        if not isinstance(each, str):
            assert isinstance(json.loads(each[1], parse_constant=pytest.fail), dict)
            each[1].encode()


@given(names, st.dictionaries(st.text(max_size=3), values, max_size=3), st.lists(st.integers(0, 9), max_size=60))
def test_a_call_is_found_whatever_its_arguments_are(name: str, arguments: dict[str, object], sizes: list[int]) -> None:
    text = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    try:
        wanted = json.loads(json.dumps(arguments, allow_nan=False))
    except ValueError:
        assert read(cut(text, sizes)) == [text]  # JSON has no such number
        return
    [found] = read(cut(text, sizes))
    assert (found[0], json.loads(found[1])) == (name, wanted)


def test_texts_and_calls_keep_their_order_and_calls_their_ids() -> None:
    parts = TaggedJson().read(f"I look < it up.{CALL} And <tool {CALL}. Done", last=True)
    found = [each for each in parts if isinstance(each, ToolCall)]
    assert [each for each in parts if isinstance(each, str)] == ["I look < it up.", " And <tool", " . Done"]
    assert [type(each) for each in parts] == [str, ToolCall, str, ToolCall, str]
    assert len({call.identity for call in found}) == 2
    assert {call.text for call in found} == {CALL}


def test_white_space_next_to_calls_is_no_text() -> None:
    assert [each[0] for each in read([f"\n{CALL}\n{CALL}\n"])] == ["look_up"] * 2
    assert read([f"So:\n{CALL}"])[0] == "So:"
    assert read([" a \n"]) == [" a \n"]  # there is no call


def test_text_is_not_held_back_longer_than_it_must() -> None:
    assert TaggedJson().feed("a < b") == ("a < b", [])
    assert TaggedJson().feed("a <tool") == ("a", [])
    assert TaggedJson().feed("a <tool>") == ("a <tool>", [])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no json</tool_call>",
        '<tool_call>{"a": 1}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "no"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "</tool_call>",
        "<tool_call>{",
        "<tool_",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read([text]) == [text]


def test_forms_that_models_write() -> None:
    assert read([CALL.removesuffix("</tool_call>")])[0][0] == "look_up"  # the closing tag is missing
    assert read(["<tool_call>oh <tool_call>" + CALL])[1][0] == "look_up"  # it has begun anew
    assert read(['<tool_call>{"name": "f"}</tool_call>']) == [("f", "{}")]
    assert read(['<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>']) == [("f", '{"a": 1}')]
    assert read(['<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>']) == [("f", '{"a": 1}')]
    assert read(['<tool_call>{"name": "f", "arguments": {"a": "\\u00e9"}}</tool_call>']) == [("f", '{"a": "é"}')]
    assert read(['<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>']) == [("f", '{"a": "\\ud800"}')]


def test_forms_that_other_readers_take() -> None:
    assert read(['<tool_call>{"name": "f", "arguments": null}</tool_call>']) == [("f", "{}")]
    assert read(['<tool_call>{"name": "f", "parameters": null}</tool_call>']) == [("f", "{}")]
    assert read(['<tool_call>{"name": "f", "arguments": {"a": "1\n\t2"}}</tool_call>']) == [("f", '{"a": "1\\n\\t2"}')]
    assert read(['<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"1\n2\\"}"}</tool_call>']) == [
        ("f", '{"a": "1\\n2"}')
    ]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_closing_tag_may_be_cut_anywhere_at_the_end(size: int) -> None:
    for length in range(len("</tool_call>")):
        text = f"{CALL.removesuffix('</tool_call>')}{'</tool_call>'[:length]}"
        [call] = TaggedJson().read(text, last=True)
        assert isinstance(call, ToolCall)
        assert (call.name, call.text) == ("look_up", text)
        assert read(cut(text, [size] * (len(text) // size))) == [("look_up", call.arguments)]
    assert read([CALL.replace("</tool_call>", "</tool_bar")]) == [CALL.replace("</tool_call>", "</tool_bar")]


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        pytest.param('<tool_call>{"a": "', "</tool_call>", id="closing tags in a text"),
        pytest.param("", "<tool_call>", id="opening tags"),
        pytest.param("", '<tool_call>{"', id="calls in texts of calls"),
        pytest.param('<tool_call>{"a": "', "<tool_call>", id="opening tags in a text"),
        pytest.param('<tool_call>{"', '<tool_call>{"a":"\\"', id="opening tags in texts of each other"),
        pytest.param('<tool_call>{"a": "', '\\"', id="escapes"),
        pytest.param("<tool_call>", '"', id="quotes"),
        pytest.param("", '<tool_call>{"name" 1}</tool_call>', id="broken calls"),
        pytest.param('<tool_call>{"', '<tool_call>{"name" 1}</tool_call>', id="broken calls in a text"),
    ],
)
@pytest.mark.parametrize("size", [5, 10**6])
def test_the_work_is_linear(begin: str, repeated: str, size: int) -> None:
    text = begin + repeated * 20_000
    reader, found = TaggedJson(), []
    before = time.process_time()
    for start in range(0, len(text), size):
        found += reader.read(text[start : start + size])
    found += reader.read("", last=True)
    assert time.process_time() - before < 10  # of an idle machine: at most 0.5; quadratic: minutes
    assert "".join(each for each in found if isinstance(each, str)) == text


def test_formats_by_name_and_by_reference() -> None:
    assert isinstance(tool_reader("tagged-json"), TaggedJson)
    assert isinstance(tool_reader("omni_serve.tool_formats:TaggedJson"), TaggedJson)
    with pytest.raises(ConfigError, match="did you mean 'tagged-json'"):
        tool_reader("tagged-jsno")
