"""Texts that are still being written: the sentences do not depend on the chunks, and the writer waits for a slow speaker."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from omni_core.api import InvalidRequestError, ReasoningChunk, RequestTooLargeError, TextChunk
from omni_transformers.speak.written import MOST_UNSPOKEN, Written

TEXTS = st.text(st.sampled_from("ab .!?。\n ,é🦊"), max_size=200)


def written(chunks: list[str], most: int = 10_000, *, cuts: bool = True) -> tuple[list[str], str]:
    """Return the parts of a text that is written in chunks and spoken at its end, and the error after them."""
    text = Written(None, cuts, most, lambda held: None)
    for chunk in chunks:
        text.write(TextChunk(chunk))
    text.end()
    parts = []
    while text.next is not None:
        parts.append(text.take())
    assert text.is_spoken
    return parts, str(text.error or "")


@given(TEXTS, st.data(), st.sampled_from([5, 60, 10_000]), st.booleans())
def test_the_parts_do_not_depend_on_the_chunks(text: str, data: Any, most: int, cuts: bool) -> None:
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    chunks = [text[begin:end] for begin, end in pairwise([0, *places, len(text)])]
    parts, error = written(chunks, most, cuts=cuts)
    assert (parts, error) == written([text], most, cuts=cuts) == written(list(text), most, cuts=cuts)
    said = "".join("".join(parts).split())
    if len(text) <= most:
        whole = "".join(text.split())
        assert whole.startswith(said)
        assert not any(map(str.isalnum, whole[len(said) :])), "marks at the end are not spoken"
        assert bool(error) == (not said), "an empty text"
    else:
        assert "limit" in error
        assert "".join(text[:most].split()).startswith(said)


def test_thoughts_are_not_spoken_and_other_chunks_end_the_request_after_what_was_said() -> None:
    text = Written(None, True, 100, lambda held: None)
    for chunk in (ReasoningChunk("Hm. Well. "), TextChunk("Hello the"), ReasoningChunk("Or hi?"), TextChunk("re. I a")):
        text.write(chunk)
    assert (text.next, text.waits) == ("Hello there.", False)
    text.write(5)
    text.write(TextChunk("m late. And so on."))
    assert text.take() == "Hello there."
    assert (text.is_spoken, type(text.error)) == (True, InvalidRequestError)
    assert "must be a TextChunk, is a int" in str(text.error)


def test_an_end_over_the_limit_is_an_error_after_the_sentences_before_it() -> None:
    text = Written(None, True, 20, lambda held: None)
    text.write(TextChunk("Hello there. And this is too much."))
    assert text.take() == "Hello there."
    assert isinstance(text.error, RequestTooLargeError)
    assert "limit of 20 characters" in str(text.error)


def test_the_writer_waits_while_much_is_not_spoken() -> None:
    told: list[bool] = []
    text = Written(None, True, 10**6, told.append)
    sentence = "This sentence has some more than forty characters. "
    count = MOST_UNSPOKEN // len(sentence) + 4
    for _ in range(count):
        text.write(TextChunk(sentence))
    assert told == [True]
    text.take()
    text.take()
    assert told == [True, False]
    text.write(TextChunk(sentence * 3))
    text.write(5)
    assert told == [True, False, True, False], "nobody waits for a text that has failed"
    without = Written(None, True, 10**6, told.append)
    for _ in range(300):
        without.write(TextChunk("and so on, "))  # no end comes: it is cut, or the writer would wait for ever
    assert without.next is not None
    whole = Written(sentence * count, True, 5, told.append)
    assert (told[5:], whole.error) == ([], None)


def test_a_text_of_another_pipeline_may_be_empty() -> None:
    for chunks in ([], [""], [" \n"]):
        for cuts in (True, False):
            text = Written(None, cuts, 100, lambda held: None, may_be_empty=True)
            for chunk in chunks:
                text.write(TextChunk(chunk))
            text.end()
            assert (text.error, text.is_spoken, text.waits) == (None, True, False)


def test_a_request_that_came_with_its_text_takes_no_more() -> None:
    text = Written("Hello.", True, 100, lambda held: None)
    text.end()
    assert text.error is None
    text.write(TextChunk("More."))
    assert "came with its text" in str(text.error)
