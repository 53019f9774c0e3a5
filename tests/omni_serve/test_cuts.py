"""A recording is cut at silences: every sample is in one part, whatever the voice detector says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from index_recogniser import Schedule

from omni_serve.cuts import cut
from omni_serve.realtime.vad import TurnDetector

TURNS = st.lists(st.tuples(st.floats(0.05, 2.0), st.floats(0.1, 8.0)), max_size=6)
"""Silences, and the turns after them, in seconds."""


@given(
    turns=TURNS,
    samples=st.integers(1, 200_000),
    rate=st.sampled_from([8000, 16_000, 44_100]),
    piece=st.integers(500, 60_000),
    longest=st.floats(0.2, 9.0),
    padding=st.floats(0.0, 2.0),
    silence=st.integers(20, 1500),
    by_turn=st.booleans(),
)
def test_no_sample_is_lost_or_doubled(
    turns: list[tuple[float, float]],
    samples: int,
    rate: int,
    piece: int,
    longest: float,
    padding: float,
    silence: int,
    by_turn: bool,
) -> None:
    Schedule.after(turns)
    numbers = np.arange(samples, dtype=np.float32)
    pieces = ((numbers[at : at + piece], rate) for at in range(0, samples, piece))
    detector = TurnDetector(Schedule(), silence_ms=silence)
    parts = list(cut(pieces, detector, longest=longest, padding=padding, by_turn=by_turn))
    assert np.array_equal(np.concatenate([each.samples for each in parts]), numbers)
    assert [each.begin for each in parts] == [int(each.samples[0]) for each in parts]
    assert all(0 < each.seconds <= longest + 1 / rate for each in parts)
    for each in parts:
        assert each.start - 1e-6 <= each.heard[0] <= each.heard[1] <= each.start + each.seconds + 1e-6


def test_parts_end_in_silences() -> None:
    Schedule.turns = [(1.0, 3.0), (4.0, 6.0), (8.0, 9.0), (9.2, 9.8), (12.0, 20.0)]
    silence = np.zeros(21 * 16_000, np.float32)

    def parts(longest: float, by_turn: bool, padding: float = 0.25) -> list[tuple[float, float]]:
        made = cut([(silence, 16_000)], TurnDetector(Schedule()), longest=longest, padding=padding, by_turn=by_turn)
        return [(round(each.start, 2), round(each.start + each.seconds, 2)) for each in made]

    assert parts(10.0, False) == [(0, 7.75), (7.75, 11.75), (11.75, 21)]
    assert parts(10.0, True) == [(0, 3.75), (3.75, 7.75), (7.75, 11.75), (11.75, 21)]
    assert parts(10.0, True, padding=5.0)[:3] == [(0, 3.0), (3.0, 6.0), (6.0, 9.8)]  # not into a turn
    assert all(end - begin <= 4.0 for begin, end in parts(4.0, False))
