"""Texts that grow, words of tokens, and where recordings are divided."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_transformers import byte_tokenizer

from omni_core.api import Segment, Word
from omni_transformers.recognise.spans import Span, overlapping_spans, quiet_spans
from omni_transformers.recognise.text import Growing, in_order, pieces, segments, words


def test_a_growing_text_tells_each_piece_once() -> None:
    text = Growing()
    found = [text.add(each) for each in (" ", " He", " Hell", " Hello ", " Hello \ufffd", " Hello ä")]
    assert found == ["", "He", "ll", "o", "", " ä"]
    assert text.add(" Hello äx \ufffd", complete=True) == "x \ufffd"
    assert text.add("what came before, written anew") == ""
    assert text.add("Hallo äx \ufffd, and the end", complete=True) == ", and the end"  # nothing is lost
    assert text.text == "Hello äx \ufffd, and the end"


@pytest.mark.parametrize(
    ("text", "spaced", "expected"),
    [
        (" Hello, my “friend”!", True, ["Hello,", "my", "“friend”!"]),
        ("(one) two", True, ["(one)", "two"]),
        ("日本、です", False, ["日", "本、", "で", "す"]),
        (" ", True, []),
    ],
)
def test_words_are_made_of_tokens_with_their_times(text: str, spaced: bool, expected: list[str]) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text)["input_ids"]
    starts, ends = list(map(float, range(len(ids)))), list(map(float, range(1, len(ids) + 1)))
    found = words(pieces(tokenizer, ids, starts, ends), spaced)
    assert [each.text for each in found] == expected
    at = 0
    for each in found:  # a token is a byte
        at = text.index(each.text[0], at)
        begin = len(text[:at].encode())
        assert (each.start, each.end) == (begin, begin + len(each.text.encode()))


def test_segments_end_with_sentences_and_before_pauses() -> None:
    said = [Word("One.", 0, 1), Word("Two", 1, 2), Word("three", 2.5, 3), Word("four", 5, 6)]
    assert segments(said) == [Segment("One.", 0, 1), Segment("Two three", 1, 3), Segment("four", 5, 6)]


def test_times_are_within_the_recording_and_in_order() -> None:
    found = in_order([Word("a", 1, 2), Word("b", 0.5, 0.6), Word("c", 4, 9)], 3.0, [Word("x", 1.2, 2)])
    assert [(each.start, each.end) for each in found] == [(1.2, 2), (1.2, 1.2), (3, 3)]


def test_a_recording_is_divided_where_it_is_quiet() -> None:
    samples = np.ones(1000, np.float32)
    samples[250:260] = samples[585:595] = 0
    found = quiet_spans(samples, 10, 40.0, search=20.0)
    assert [each.begin for each in found] == [0, *(each.end for each in found[:-1])]
    assert 250 <= found[0].end < 260
    assert 585 <= found[1].end < 595
    assert found[-1].end == 1000
    assert all(each.end - each.begin <= 400 for each in found)
    assert quiet_spans(samples[:400], 10, 40.0) == [Span(0, 400)]


@pytest.mark.parametrize("length", [1, 99, 100, 101, 160, 161, 1000])
def test_overlapping_windows_cover_each_sample_once(length: int) -> None:
    found = overlapping_spans(length, 10, 10.0, 2.0)
    kept = [number for each in found for number in range(each.begin + each.left, each.end - each.right)]
    assert kept == list(range(length))
    assert all(each.end - each.begin <= 100 for each in found)
