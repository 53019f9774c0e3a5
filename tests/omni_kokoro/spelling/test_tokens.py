"""Sentences of tokens, cut and matched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_kokoro.spelling.text import runs
from omni_kokoro.spelling.tokens import FIRST, Token, known, matched, phonemes_of, pieces

TOKENS = st.lists(
    st.builds(
        Token, st.text("ab", max_size=3), st.sampled_from(["a", "bc", ".", ",", "d" * 30, "e" * 70]), st.booleans()
    ),
    max_size=40,
)


@given(TOKENS, st.integers(8, 64), st.booleans())
def test_pieces_hold_every_phoneme_and_fit(tokens: list[Token], most: int, first: bool) -> None:
    found = pieces(tokens, most, first)
    assert "".join(each.phonemes for piece in found for each in piece) == "".join(each.phonemes for each in tokens)
    assert all(0 < len(phonemes_of(piece)) <= most for piece in found if phonemes_of(piece))


def test_a_long_sentence_is_cut_at_its_marks_and_the_first_is_short() -> None:
    words = [Token("w", "word", True)] * 8
    sentence = [*words, Token("", ",", True), *words, Token("", ";", True), *words]
    assert [len(each) for each in pieces(sentence, 200, first=False)] == [26]
    assert [len(each) for each in pieces(sentence, 90, first=False)] == [18, 8]
    assert [len(each) for each in pieces(sentence, 200, first=True)] == [9, 17]
    assert len(phonemes_of(sentence[:9])) <= FIRST


@given(
    st.lists(st.text("abc1", min_size=1, max_size=6), max_size=12),
    st.lists(st.text("xyz", min_size=1, max_size=6), max_size=12),
)
def test_words_matched_with_what_is_said_say_all_of_it(words: list[str], spoken: list[str]) -> None:
    found = matched(words, spoken)
    if not words or not spoken:
        assert found == [] or not words
    else:
        assert "".join(each.phonemes for each in found).replace(" ", "") == "".join(spoken)
        assert " ".join(each.text for each in found) == " ".join(words)


def test_numbers_are_several_words_and_short_words_one() -> None:
    found = matched(["it", "is", "42", "of", "the", "people"], ["ɪt", "ɪz", "fˈɔɹti", "tˈu", "ʌvðə", "pˈipəl"])
    assert [(each.text, each.phonemes) for each in found] == [
        ("it", "ɪt"), ("is", "ɪz"), ("42", "fˈɔɹti tˈu"), ("of", "ʌv"), ("the", "ðə"), ("people", "pˈipəl"),
    ]  # fmt: skip


def test_a_text_is_words_marks_and_given_phonemes() -> None:
    found = runs('Dr. Who paid $3.14 at 10:30, "yes"... [Kokoro](/kˈOkəɹO/) 😀!')
    assert [each.phonemes or each.mark or each.words for each in found] == [
        "Dr Who paid $3.14 at 10:30", ",", '"', "yes", '"', "…", "kˈOkəɹO", "!",
    ]  # fmt: skip


def test_phonemes_that_are_not_known_are_told() -> None:
    assert known([Token("x", "aqb", True)], {"a": 1, "b": 2}) == ([Token("x", "ab", True)], {"q"})
