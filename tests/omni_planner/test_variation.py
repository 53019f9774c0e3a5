"""Turns vary as much as the fit of the measured ones is off, and the same way each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from omni_planner.profile import Seconds
from omni_planner.variation import DRAWS, varied


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
