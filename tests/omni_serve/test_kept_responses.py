"""The store of earlier responses: a conversation is in memory once, and what is kept is bounded in number, bytes and time."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_serve import kept_responses
from omni_serve.kept_responses import VALUE_BYTES, KeptResponses, Turn, weigh


def turn(text: str, before: Turn | None = None, owner: str = "a") -> Turn:
    return Turn(owner, [text], before, "s")


def test_weights() -> None:
    assert weigh([{"role": "user", "content": ["abc", 5, None]}]) == (9, 18 + 9 * VALUE_BYTES)


def test_a_conversation_is_counted_once_and_freed_with_its_last_response() -> None:
    kept = KeptResponses(60, 10, 10**6)
    first = turn("x" * 1000)
    kept.keep("1", first)
    second = turn("y" * 10, kept.find("1", "a"))
    kept.keep("2", second)
    other = turn("z" * 10, kept.find("1", "a"))
    kept.keep("3", other)
    assert kept.size == sum(each.own_size for each in (first, second, other))
    assert (second.conversation, other.conversation) == (["x" * 1000, "y" * 10], ["x" * 1000, "z" * 10])
    assert (second.values, second.size) == (4, first.size + second.own_size)
    gone = weakref.ref(first)
    del first
    for name in ("1", "3"):
        assert kept.delete(name, "a")
        assert not kept.delete(name, "a")
    assert kept.find("1", "a") is None
    assert second.conversation[0] == "x" * 1000, "what goes on from it stays whole"
    assert kept.size == second.size
    assert kept.delete("2", "a")
    assert kept.size == 0
    del second, other
    gc.collect()
    assert gone() is None


def test_a_response_that_is_forgotten_while_the_next_one_is_made_counts_again() -> None:
    kept = KeptResponses(60, 10, 10**6)
    kept.keep("1", turn("one"))
    kept.keep("2", turn("two", kept.find("1", "a")))
    before = kept.find("2", "a")
    assert kept.clear() == 2
    assert kept.size == 0
    third = turn("three", before)
    kept.keep("3", third)
    assert kept.size == third.size
    assert kept.clear() == 1
    assert kept.size == 0


def test_the_key_that_has_the_most_loses_its_oldest() -> None:
    kept = KeptResponses(60, 4, 10**6)
    kept.keep("mine", turn("x", owner="b"))
    for number in range(9):
        kept.keep(str(number), turn("x"))
    assert [name for name in map(str, range(9)) if kept.find(name, "a")] == ["6", "7", "8"]
    assert kept.find("mine", "b") is not None
    assert kept.find("mine", "a") is None, "another key's"
    kept = KeptResponses(60, 100, 4900)
    kept.keep("mine", turn("x" * 1000, owner="b"))
    for number in range(9):
        kept.keep(str(number), turn("x" * 1000))
    assert [name for name in map(str, range(9)) if kept.find(name, "a")] == ["6", "7", "8"]
    assert kept.find("mine", "b") is not None
    assert kept.size == 4800


def test_responses_expire_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(kept_responses.time, "time", lambda: now)
    kept = KeptResponses(60, 10, 10**6)
    for name in ("1", "2"):
        kept.keep(name, turn(name))
    now = 1050.0
    assert kept.find("1", "a") is not None
    now = 1070.0
    assert kept.find("2", "a") is None
    assert kept.find("1", "a") is not None
    assert kept.size == turn("1").size
    now = 1130.0
    kept.keep("3", turn("3", owner="b"))
    assert kept.size == turn("3").size


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 900), st.booleans())))
def test_sizes_are_those_of_what_is_reachable(steps: list[tuple[str, int, int, bool]]) -> None:
    kept, names = KeptResponses(60, 6, 4000), dict[str, list[str]](a=[], b=[])
    for number, (owner, place, length, deletes) in enumerate(steps):
        known = names[owner][place] if place < len(names[owner]) else ""
        if deletes:
            kept.delete(known, owner)
        else:
            kept.keep(str(number), turn("x" * length, kept.find(known, owner), owner))
            names[owner].append(str(number))
        reachable: dict[int, Turn] = {}
        for each in (found for some in kept._kept.values() for found in some.values()):
            last: Turn | None = each
            while last is not None:
                reachable[id(last)] = last
                last = last.before
        assert kept.size == sum(each.own_size for each in reachable.values()) <= 4000
        assert sum(kept._sizes.values()) == kept.size
