"""The moment at which the first sound of a request goes out: early where nothing follows late, and never not at all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.protocol.messages import OmniRequest
from omni_torch.vocoder.deadlines import Deadlines
from omni_torch.vocoder.playout import Playout, Reach


def said(playout: Playout[str], name: str, pieces: list[tuple[float, float]], requests: int) -> list[tuple[float, str]]:
    """Give the pieces of a request, each its moment and its seconds; return what went out, and when."""
    out: list[tuple[float, str]] = []
    playout.policy.begin(name, OmniRequest(), pieces[0][0])
    starts = math.inf
    for number, (now, seconds) in enumerate(pieces):
        if starts <= now:
            out += [(starts, piece) for _, piece in playout.due(requests, starts)[0]]
        out += [(now, piece) for piece in playout.add(name, str(number), seconds, requests, now)]
        ready, starts = playout.due(requests, now)
        out += [(now, piece) for _, piece in ready]
    now = pieces[-1][0]
    out += [(now, piece) for piece in playout.flush(name, now)]
    playout.end(name)
    playout.forget(name)
    playout.policy.end(name)
    return out


def test_the_first_sound_waits_for_as_long_as_requests_before_it_had_a_pause() -> None:
    playout = Playout[str](Deadlines(slack=0.05))
    for _ in range(20):
        out = said(playout, "r", [(10.0, 0.3), (11.0, 2.0), (12.0, 2.0)], 8)
    assert [piece for _, piece in out] == ["0", "1", "2"]
    assert out[0][0] == pytest.approx(10.75, abs=0.01), "0.3 s of sound until 11.0, and the slack"
    assert [moment for moment, _ in out[1:]] == [11.0, 12.0]


def test_nothing_waits_before_anything_is_known_nor_where_all_is_in_time() -> None:
    playout = Playout[str](Deadlines())
    for _ in range(3):
        assert said(playout, "r", [(0.0, 0.3), (0.1, 2.0), (1.0, 2.0)], 8)[0] == (0.0, "0")


def test_sound_that_is_made_more_slowly_than_it_is_played_begins_late_enough_for_all_of_it() -> None:
    playout = Playout[str](Deadlines(slack=0.0))
    slow = [(2.0 * number, 1.0) for number in range(5)]
    for _ in range(20):
        out = said(playout, "r", slow, 3)
    assert out[0][0] == pytest.approx(4.0, abs=0.01), "4 s of sound follow the first second until 8.0"
    assert [piece for _, piece in out] == ["0", "1", "2", "3", "4"]


def test_the_prediction_follows_the_number_of_requests_and_their_spread() -> None:
    reach = Reach()
    assert reach.seconds(50) == 0.0
    for step in range(200):
        requests = 10 + step % 10
        reach.observe(requests, 0.02 * requests * (1.5 if step % 7 == 0 else 1.0))
    assert reach.seconds(40) == pytest.approx(0.02 * 40 * 1.5, rel=0.05)


def test_a_request_that_is_alone_does_not_wait_as_those_of_a_busy_time_did() -> None:
    reach = Reach()
    for _ in range(10):
        reach.observe(1, 0.3)
    for _ in range(2000):
        reach.observe(8, 1.6)
    assert reach.seconds(8) == pytest.approx(1.6)
    assert reach.seconds(1) == pytest.approx(0.3)
    for _ in range(200):
        reach.observe(1, 0.5)
    assert reach.seconds(1) == pytest.approx(0.5, rel=0.01), "once it is usual again"


def test_the_patience_ends_the_wait() -> None:
    policy = Deadlines(patience=30.0)
    policy.begin("r", OmniRequest(), 100.0)
    assert policy.starts("r", 101.0, 1000.0, 101.0) == 130.0
    assert policy.starts("r", 140.0, 1000.0, 140.0) == 140.0
    assert policy.starts("r", 101.0, -0.2, 101.0) == 101.0


def test_one_slow_request_that_was_alone_does_not_hold_back_later_ones() -> None:
    """The first one of a process is often slow."""
    reach = Reach()
    reach.observe(1, 5.0)
    for _ in range(2000):
        reach.observe(8, 0.1)
    assert reach.seconds(1) < 0.1


@given(
    st.lists(st.lists(st.tuples(st.floats(0, 60), st.floats(0.01, 3)), min_size=1, max_size=6), min_size=1, max_size=12)
)
def test_every_piece_goes_out_once_and_in_order(requests: list[list[tuple[float, float]]]) -> None:
    """Whatever came before: at the end of its request, or after the patience, at the latest."""
    playout = Playout[str](Deadlines(patience=30.0))
    for gaps in requests:
        now, pieces = 0.0, []
        for gap, seconds in gaps:
            now += gap
            pieces.append((now, seconds))
        out = said(playout, "r", pieces, 4)
        assert [piece for _, piece in out] == [str(number) for number in range(len(pieces))]
        moments = [moment for moment, _ in out]
        assert moments == sorted(moments)
        assert moments[0] <= pieces[0][0] + 30.0
