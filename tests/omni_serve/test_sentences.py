"""Sentences out of a text that arrives in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
