"""Passes by deadlines: all together while that makes nobody late, split where that saves somebody, and nothing starves."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from omni_torch.vocoder.passes import NextChunk, Passes


def passes(max_running: int | None = None, *, stream: float = 0.0, frame: float = 0.01) -> Passes:
    """Passes whose cost is known."""
    made = Passes(max_running)
    for number in range(1, 60):
        streams, frames = number % 7 + 1, 4 * (number % 11 + 1)
        made.computed(streams, frames, 0.001 + stream * streams + frame * frames)
    return made


def heard(moment: float, frames: int = 10, *, here: bool = True) -> NextChunk:
    return NextChunk(moment, frames, here, is_heard=True)


def new(moment: float = 0.25, frames: int = 10) -> NextChunk:
    return NextChunk(moment, frames, True, may_wait=True)


def test_all_share_a_pass_while_nobody_is_late() -> None:
    assert passes().choose({"a": heard(5.0), "b": new(), "c": heard(4.0)}, 0.0)[0] == ["b", "c", "a"]


def test_one_that_would_be_late_goes_first_where_that_saves_it() -> None:
    chosen, _ = passes().choose({"a": heard(5.0, 40), "b": heard(0.2), "c": heard(6.0, 40)}, 0.0)
    assert chosen == ["b"]


def test_a_pass_is_not_split_for_one_that_is_late_anyway() -> None:
    chosen, _ = passes().choose({"a": heard(5.0, 40), "b": heard(0.05), "c": heard(6.0, 40)}, 0.0)
    assert sorted(chosen) == ["a", "b", "c"]


def test_a_new_one_waits_for_the_frames_of_one_that_is_heard() -> None:
    chunks = {"a": heard(0.3, 20, here=False), "b": new(frames=20)}
    assert passes().choose(chunks, 0.0) == ([], 0.3)
    chunks["b"] = NextChunk(0.25, 20, True)
    assert passes().choose(chunks, 0.0)[0] == ["b"], "it may not wait"


def test_frames_that_did_not_come_in_time_hold_up_nobody() -> None:
    assert passes().choose({"a": heard(0.3, 20, here=False), "b": new(frames=20)}, 0.3)[0] == ["b"]


def test_a_request_without_frames_is_not_waited_for() -> None:
    assert passes().choose({"a": heard(0.1, 0, here=False), "b": new()}, 0.0)[0] == ["b"]


def test_the_earliest_go_first_where_not_all_fit() -> None:
    assert passes(2).choose({"a": heard(9.0), "b": heard(7.0), "c": heard(8.0)}, 0.0)[0] == ["b", "c"]


LISTENS = st.sampled_from([(True, False), (False, True), (False, False)])
"""A request that is heard is not held back."""

CHUNK = st.builds(
    lambda moment, frames, here, listens: NextChunk(moment, frames, here, *listens),
    st.floats(-1, 3), st.integers(0, 60), st.booleans(), LISTENS,
)  # fmt: skip


@given(
    st.dictionaries(st.integers(0, 20).map(str), CHUNK, max_size=12),
    st.one_of(st.none(), st.integers(1, 5)),
    st.sampled_from([0.0, 0.001, 0.05]),
)
def test_a_pass_is_made_of_what_is_there_or_somebody_is_waited_for(
    chunks: dict[str, NextChunk], most: int | None, frame: float
) -> None:
    order = passes(most, frame=frame)
    here = [name for name, each in chunks.items() if each.is_here and each.frames]
    chosen, again = order.choose(chunks, 0.0)
    assert len(set(chosen)) == len(chosen) <= (most or math.inf)
    assert set(chosen) <= set(here)
    if not chosen and here:
        assert all(chunks[name].may_wait for name in here), "whoever may not wait is served"
        assert 0.0 < again < math.inf, "and the others after a moment of somebody who is heard"
        assert order.choose(chunks, max(each.moment for each in chunks.values()))[0], "they are not held back for ever"
