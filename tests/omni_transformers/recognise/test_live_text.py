"""The text of a stream as its tokens come: whole characters, whole words, each told once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_transformers import byte_tokenizer

from omni_core.api import Segment, Transcript, TranscriptChunk, Word
from omni_testing.outputs import check_transcript
from omni_transformers.recognise.live_text import Token, Written

TOKENIZER = byte_tokenizer()
STEP = 0.1
"""Seconds of a token."""


def told(text: str, cuts: list[int], timestamps: str = "none", **options: Any) -> tuple[list[TranscriptChunk], Written]:
    """Return what is told of a text of one token for each byte and each 0.1 s, which comes in pieces."""
    written = Written(TOKENIZER, timestamps, **options)
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    tokens = [Token(each, number * STEP, (number + 1) * STEP) for number, each in enumerate(ids)]
    bounds = [0, *sorted(min(each, len(tokens)) for each in cuts), len(tokens)]
    chunks = [written.add(tokens[a:b], b * STEP) for a, b in pairwise(bounds)]
    chunks.append(written.end(len(tokens) * STEP))
    return [each for each in chunks if each is not None], written


@given(st.text(st.sampled_from("aé日 .,("), min_size=1, max_size=20), st.lists(st.integers(0, 40), max_size=8))
def test_every_cut_tells_the_same(text: str, cuts: list[int]) -> None:
    chunks, written = told(text, cuts, "word")
    assert written.text == text.strip()
    result = Transcript(written.text, None, written.segments, written.words, len(text.encode()) * STEP)
    if written.words:  # none of marks alone
        check_transcript(chunks, result, "word")
    whole = told(text, [], "word")[1]
    assert (written.text, written.words, written.segments) == (whole.text, whole.words, whole.segments)
    assert [each.text for each in written.words] == [] or "".join(each.text for each in written.words) == text.replace(
        " ", ""
    )


def test_words_and_segments_are_told_when_they_are_complete() -> None:
    chunks, written = told("Hi yo. So it", [3, 4, 8], "word")
    assert [(each.text, [one.text for one in each.words]) for each in chunks] == [
        ("Hi", []), (" y", ["Hi"]), ("o. S", ["yo."]), ("o it", ["So"]), ("", ["it"]),
    ]  # fmt: skip
    assert written.words[1] == Word("yo.", pytest.approx(0.3), pytest.approx(0.6))
    assert [each.text for each in written.segments] == ["Hi yo.", "So it"]
    assert [len(each.segments) for each in chunks] == [0, 0, 0, 1, 1]


def test_a_word_that_ends_behind_what_is_heard_waits() -> None:
    written = Written(TOKENIZER, "word")
    tokens = [Token(each, 0.0, 1.0) for each in TOKENIZER.encode("a b", add_special_tokens=False)]
    first = written.add(tokens, 0.5)
    assert first == TranscriptChunk("a b")
    last = written.end(0.8)
    assert last is not None
    assert last.words == [Word("a", 0.0, 0.8), Word("b", 0.0, 0.8)]


def test_a_long_silence_is_not_kept() -> None:
    written = Written(TOKENIZER)
    a, pad, b = TOKENIZER.encode("a<pad>b", add_special_tokens=False)
    written.add([Token(a, 0.0, 0.1), *[Token(pad, 0.1, 0.2)] * 1000, Token(b, 0.2, 0.3)], 0.3)
    assert written.text == "ab"
    assert written._pieces._ids == [a, pad, b]


@pytest.mark.parametrize(("timestamps", "words", "count"), [("none", [], 0), ("segment", [], 1), ("word", ["ab"], 1)])
def test_times_come_as_they_are_asked_for(timestamps: str, words: list[str], count: int) -> None:
    _, written = told("ab", [1], timestamps)
    assert ([each.text for each in written.words], len(written.segments)) == (words, count)
    assert written.segments in ([], [Segment("ab", 0.0, pytest.approx(0.2))])


def test_a_language_without_spaces_has_characters_for_words() -> None:
    _, written = told("日本", [2], "word", spaced=False)
    assert [each.text for each in written.words] == ["日", "本"]
