"""Sentences out of a text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_serve import sentences
from omni_serve.sentences import LONGEST, SentenceCutter

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
