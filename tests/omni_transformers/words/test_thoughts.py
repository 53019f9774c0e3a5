"""Thoughts are told from answers, however a text is cut into pieces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_transformers.scripted import RESPONSE_TEMPLATE

from omni_transformers.words.thoughts import ByTemplate, Channels, Splitter, Tagged, Told, Unsplit

SPLITTERS: dict[str, Callable[[], Splitter]] = {
    "unsplit": Unsplit,
    "tagged": lambda: Tagged("<think>", "</think>"),
    "open": lambda: Tagged("<think>", "</think>", True),
    "gemma": lambda: Tagged("<|channel>thought\n", "<channel|>"),
    "channels": Channels,
    "template": lambda: ByTemplate(RESPONSE_TEMPLATE, "<|im_start|>assistant\n"),
    "open template": lambda: ByTemplate(RESPONSE_TEMPLATE, "user<think><|im_start|>assistant\n<think>\n"),
}


def split(name: str, *pieces: str) -> tuple[str, str]:
    """Return thoughts and text; what was streamed equals them."""
    told, streamed = Told(SPLITTERS[name]()), {True: "", False: ""}
    for number, piece in enumerate(pieces):
        for is_thought, text in told.read(piece, last=number == len(pieces) - 1):
            assert text
            streamed[is_thought] += text
    assert streamed == {True: told.thoughts, False: told.text}
    return told.thoughts, told.text


SCRAPS = [
    *(
        "<think>",
        "</think>",
        "<",
        "think>",
        "</",
        "\n",
        " ",
        "a",
        "{",
        "<tool>",
        "</tool>",
        '<tool>{"name": "f"}</tool>',
        "<|im_end|>",
    ),
    *(
        "<|channel>thought\n",
        "<channel|>",
        "<|start|>assistant",
        "<|channel|>",
        "analysis",
        "final",
        " to=functions.f",
        "<|message|>",
    ),
    *("<|end|>", "<|return|>", "<|call|>", "<|"),
]


@pytest.mark.parametrize("name", SPLITTERS)
@given(st.lists(st.sampled_from(SCRAPS), max_size=10).map("".join), st.lists(st.integers(0, 9), max_size=60))
def test_pieces_do_not_matter(name: str, text: str, sizes: list[int]) -> None:
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert split(name, *pieces, rest) == split(name, text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "tagged",
            "\n<think>\nLet me see.\n</think>\n\nIt is <think>2</think>.",
            ("Let me see.", "It is <think>2</think>."),
        ),
        ("tagged", "<think>\n\n</think>\n\nHello", ("", "Hello")),
        ("tagged", "<think>cut", ("cut", "")),
        ("tagged", " Hello <think>", ("", " Hello <think>")),
        ("tagged", "<thin", ("", "<thin")),
        ("open", "Let me see.</think>\n\nHello", ("Let me see.", "Hello")),
        ("gemma", "<|channel>thought\nHm.\n<channel|>Hello", ("Hm.", "Hello")),
        ("unsplit", "<think>x</think>", ("", "<think>x</think>")),
        (
            "channels",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look. <|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>",
            ("Hm.\nSo.", "I look. Hello"),
        ),
        (
            "channels",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
            "<|constrain|>json<|message|>{}<|call|>",
            ("Hm.", "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"),
        ),
        ("template", "<think>Hm.</think>\n\nHello<|im_end|>", ("Hm.", "Hello")),
        ("open template", "Hm.</think>\n\nHello", ("Hm.", "Hello")),
        (
            "template",
            'So:\n<tool>{"name": "f", "arguments": {"a": 1}}</tool>\n<tool>{"name": "g", "arguments": {}}</tool><|im_end|>',
            (
                "",
                'So:<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>',
            ),
        ),
        ("template", "So: <tool>no JSON</tool> go on", ("", "So:no JSON</tool> go on")),
        ("template", "So: <tool>cut", ("", "So:cut")),
    ],
)
def test_thoughts_and_texts(name: str, text: str, expected: tuple[str, str]) -> None:
    assert split(name, text) == expected


def test_nothing_is_held_back_longer_than_it_must() -> None:
    told = Told(Tagged("<think>", "</think>"))
    assert told.read("<think>a") == [(True, "a")]
    assert told.read(" b <") == [(True, " b")]
    assert told.read("c") == [(True, " <c")]
    assert told.read("</think>\n") == []
    assert told.read("d") == [(False, "d")]
    assert told.tokens == 3
