"""Turns vary as much as the fit of the measured ones is off, and the same way each time; the machine's speed does as it was measured."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from omni_planner.profile import Seconds, StageProfile
from omni_planner.trace import Turn, Window
from omni_planner.variation import DRAWS, drift_of, slowness, varied


def costing(kind: str, counts: Sequence[float]) -> Seconds:
    return 0.002 * counts[0], 0.5


def drawn(errors: dict[str, float], seed: str) -> list[Seconds]:
    made = varied(costing, errors, seed)
    return [made("speech", [1]) for _ in range(DRAWS)]


def test_the_mean_stays_and_the_spread_is_the_error() -> None:
    seconds = np.array([processor for processor, _ in drawn({"speech": 0.2}, "thinker.0")])
    assert seconds.mean() == pytest.approx(0.002)
    assert seconds.std() / seconds.mean() == pytest.approx(0.2, rel=0.1)
    assert seconds.min() > 0


def test_time_of_a_device_does_not_vary() -> None:
    assert {device for _, device in drawn({"speech": 0.2}, "thinker.0")} == {0.5}


def test_a_seed_says_the_factors() -> None:
    first = drawn({"speech": 0.2}, "thinker.0")
    assert first == drawn({"speech": 0.2}, "thinker.0")
    assert first != drawn({"speech": 0.2}, "thinker.1"), "replicas are not in step"


def test_without_an_error_turns_are_as_measured() -> None:
    assert set(drawn({"speech": 0.0, "text": 0.3}, "thinker.0")) == {(0.002, 0.5)}


def test_any_seconds_of_a_drifting_machine_are_spread_over_its_speeds() -> None:
    made = np.array(slowness(0.1))
    assert made.std() == pytest.approx(0.1, rel=0.1)
    assert made.mean() == pytest.approx(1.0, abs=0.01)
    assert made[0] == pytest.approx(1.0, abs=0.01)
    for begin in range(len(made) - 10):
        slower = (made[begin : begin + 10] > np.median(made)).sum()
        assert 4 <= slower <= 6
    assert slowness(0.0) == []


@pytest.mark.parametrize("drift", [0.0, 0.05, 0.15])
def test_the_drift_of_turns_is_found_among_their_own_errors(drift: float) -> None:
    """Four loops whose turns of two sizes err by a fifth, on a machine whose speed changes every tenth of a second."""
    drawn, stages = random.Random(1), {"talker": StageProfile("stream")}
    windows = [Window("speech", 1e6 * number, 1e6 * number + 1e6, alone=False) for number in range(4)]
    windows.append(Window("speech", 4e6, 5e6, alone=True))
    turns: list[Turn] = []
    for piece in range(50):
        speed = drawn.gauss(1.0, drift) if piece < 40 else drawn.gauss(3.0, 1.0)  # those of requests alone do not count
        for number in range(30):
            counts = {"turns": 1.0, "taken": float(number % 2)}
            seconds = speed * (0.002 + 0.003 * counts["taken"]) * drawn.gauss(1.0, 0.2)
            turns.append(Turn("talker", 1e5 * piece + 3e3 * number, seconds, counts))
    for turn in turns[: 40 * 30]:
        stages["talker"].observe("speech", turn.counts, turn.seconds)
    assert drift_of(turns, windows, stages) == pytest.approx(drift, abs=0.02)


def test_a_turn_that_takes_most_of_the_time_tells_no_drift() -> None:
    """In each tenth of a second one turn of 50 ms, which errs by a fifth, and four of a fifth of a millisecond."""
    drawn, stages = random.Random(2), {"thinker": StageProfile("stream"), "decode": StageProfile("stream")}
    turns: list[Turn] = []
    for piece in range(40):
        each = [("thinker", 0.05), *[("decode", 0.0002)] * 4]
        for number, (stage, seconds) in enumerate(each):
            turns.append(Turn(stage, 1e5 * piece + 1e3 * number, seconds * drawn.gauss(1.0, 0.2), {"turns": 1.0}))
            stages[stage].observe("text", turns[-1].counts, turns[-1].seconds)
    assert drift_of(turns, [Window("text", 0.0, 4e6, alone=False)], stages) == 0.0


def test_too_few_turns_tell_no_drift() -> None:
    stages = {"talker": StageProfile("stream")}
    turns = [Turn("talker", 3e5 * number, 0.01 * number, {"turns": 1.0}) for number in range(1, 4)]
    for turn in turns:
        stages["talker"].observe("speech", turn.counts, turn.seconds)
    assert drift_of(turns, [Window("speech", 0.0, 1e6, alone=False)], stages) == 0.0
    assert drift_of([], [], stages) == 0.0
