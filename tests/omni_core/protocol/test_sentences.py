"""Sentences out of a text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.protocol import sentences
from omni_core.protocol.sentences import LONGEST, SentenceCutter

TEXT = "Hello there. This is the second sentence, which is long enough. No! Yes? " + "word " * 400 + "\nEnd。好。"


def cut(pieces: list[str]) -> list[str]:
    cutter = SentenceCutter()
    return [part for piece in pieces for part in cutter.feed(piece)] + cutter.finish()


@given(st.lists(st.integers(1, 500), max_size=20))
def test_pieces_do_not_matter(sizes: list[int]) -> None:
    pieces, rest = [], TEXT
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert cut([*pieces, rest]) == cut([TEXT])
    assert "".join("".join(cut([*pieces, rest])).split()) == "".join(TEXT.split())
    assert all(len(part) <= LONGEST for part in cut([*pieces, rest]))


def test_the_first_sentence_comes_at_once_and_short_ones_together() -> None:
    cutter = SentenceCutter()
    assert cutter.feed("Hi. T") == ["Hi."]
    assert cutter.feed("his is short. And this is not as short as it was. N") == [
        "This is short. And this is not as short as it was."
    ]
    assert cutter.finish() == ["N"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Have a nice day! \U0001f60a", ["Have a nice day!"]),
        ("\U0001f389! Well done. ...", ["\U0001f389! Well done."]),
        (
            "Fine.\n\n---\n\nGo on. \u4f60\u597d\u3002\U0001f60a\u3002",
            ["Fine.", "---\n\nGo on. \u4f60\u597d\u3002\U0001f60a\u3002"],
        ),
        ("... \U0001f60a", ["... \U0001f60a"]),
    ],
)
def test_marks_alone_are_no_sentence(text: str, parts: list[str]) -> None:
    assert cut([text]) == cut([*text]) == parts


FIRST = {
    "Dr. Smith met Mrs. Lee. They spoke.": "Dr. Smith met Mrs. Lee.",
    "The U.S. Senate, e.g. its rules. Next.": "The U.S. Senate, e.g. its rules.",
    "J. R. R. Tolkien wrote. Others read.": "J. R. R. Tolkien wrote.",
    "So do I. Then we go.": "So do I.",
    "See fig. 3 and no. 5. Then stop.": "See fig. 3 and no. 5.",
    "No. I will not.": "No.",
    "1. Open it. 2. Close it.": "1. Open it.",
    "It is 98.6 degrees. Fine.": "It is 98.6 degrees.",
    "Well... maybe. Or not.": "Well... maybe.",
    "Das gilt z. B. hier, d.h. immer. Ja.": "Das gilt z. B. hier, d.h. immer.",
    'He said "no." Then he left.': 'He said "no."',
    "\u092f\u0939 \u0939\u0948\u0964 \u0935\u0939 \u092d\u0940\u0964 x": "\u092f\u0939 \u0939\u0948\u0964",
    "\u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f \u0628\u062e\u064a\u0631. x": "\u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f",
    "\u06cc\u06c1 \u06c1\u06d2\u06d4 \u0648\u06c1 x": "\u06cc\u06c1 \u06c1\u06d2\u06d4",
    "\u300c\u4f60\u597d\uff01\uff1f\u300d\u4ed6\u8bf4\u3002\u597d": "\u300c\u4f60\u597d\uff01\uff1f\u300d",
}


@pytest.mark.parametrize("text", FIRST)
def test_the_first_sentence_is_a_whole_one(text: str) -> None:
    """In one piece, and letter by letter."""
    assert cut([text])[0] == FIRST[text]
    assert cut(list(text)) == cut([text])


@pytest.mark.parametrize(
    "character",
    [
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f1e9\U0001f1ea",
        "\U0001f44d\U0001f3fd",
        "e\u0301",
        "\u2764\ufe0f",
    ],
)
def test_a_cut_without_an_end_is_between_characters(character: str) -> None:
    for before in range(len(character)):
        parts = cut(["x" * before + character * LONGEST + "x"])
        assert "".join(parts) == "x" * before + character * LONGEST + "x"
        assert all(len(part.strip("x")) % len(character) == 0 and len(part) <= LONGEST for part in parts)


def test_nothing_is_nothing() -> None:
    assert cut([" ", "\n"]) == []


def test_no_more_is_searched_than_a_part_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    pattern = sentences._END

    class Pattern:
        def finditer(self, text: str, start: int = 0, end: int | None = None) -> Iterator[re.Match[str]]:
            end = len(text) if end is None else min(end, len(text))
            searched.append(end - start)
            return pattern.finditer(text, start, end)

    monkeypatch.setattr(sentences, "_END", Pattern())
    cut(["x" * 20 * LONGEST])
    assert max(searched) <= LONGEST + 1
