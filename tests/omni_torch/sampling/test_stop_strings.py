"""Stop strings: the text ends before the first of them however it is cut, and a possible beginning of one is held back."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from omni_torch.sampling.stop_strings import StopStrings, StopTokens

TEXT = "One, two. Three END four"


def cut(text: str, places: tuple[int, ...]) -> list[str]:
    edges = [0, *places, len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        ([], TEXT),
        (["END"], "One, two. Three "),
        (["nowhere"], TEXT),
        (["two. T", "."], "One, two"),
        (["four"], "One, two. Three END "),
        (["ee END", "e E"], "One, two. Thre"),
        (["ND", "END"], "One, two. Three "),
    ],
)
def test_the_end_does_not_depend_on_the_pieces(stops: list[str], expected: str) -> None:
    for places in combinations(range(1, len(TEXT)), 3):
        text, given = StopStrings(stops), ""
        for piece in cut(TEXT, places):
            text.feed(piece)
            assert text.text[: text.safe].startswith(given), "what was given out stays"
            given = text.text[: text.safe]
        end = len(TEXT) if text.end is None else text.end
        assert TEXT[:end] == expected
        assert expected.startswith(given)


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    text = StopStrings(["###"])
    shown = []
    for piece in ("a#", "#", "b", "##", "#c"):
        text.feed(piece)
        shown.append(text.text[: text.safe])
    assert shown == ["a", "a", "a##b", "a##b", "a##b"]


def tokens(*stops: str) -> StopTokens:
    pieces = {0: None, 1: "Hel", 2: "lo", 3: " ", 4: "EN", 5: "D", 6: "E"}
    return StopTokens(stops, lambda: pieces.get)


def test_tokens_of_a_stop_string_are_told_from_those_before_it() -> None:
    reply = tokens("END")
    ids = [1, 2, 3, 4, 5]
    seen = [(reply.ended(ids[: count + 1]), reply.safe) for count in range(len(ids))]
    assert seen == [(False, 1), (False, 2), (False, 3), (False, 3), (True, 3)]


def test_a_token_that_holds_the_begin_of_a_stop_string_is_none_before_it() -> None:
    reply = tokens("lo E")
    assert [reply.ended([1, 2, 3, 4][:count]) for count in range(1, 5)] == [False, False, False, True]
    assert reply.safe == 1
    reply = tokens("o E")
    assert reply.ended([1, 2, 3, 6])
    assert reply.safe == 1, "token 2 holds text before the stop string and its beginning"


def test_ids_may_be_taken_back() -> None:
    reply = tokens("END")
    assert reply.ended([1, 4, 5])
    assert not reply.ended([1, 4])
    assert not reply.ended([1, 4, 6])
    assert reply.ended([1, 4, 5])


def test_a_token_without_text_of_its_own_ends_with_the_next_that_has_some() -> None:
    reply = tokens("END")
    assert not reply.ended([1, 0])
    assert reply.safe == 1
    assert not reply.ended([1, 0, 2])
    assert reply.safe == 3
