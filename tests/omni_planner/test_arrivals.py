"""Arrivals have the rate that was asked for, and vary as much as was asked for."""

from __future__ import annotations

import random
import statistics
from itertools import islice, pairwise

import pytest

from omni_core.errors import ConfigError
from omni_planner.arrivals import Bursts, Gamma, Pattern, Poisson, amid_others, open_loop, pattern_of


@pytest.mark.parametrize(
    ("pattern", "variation"),
    [(Poisson(), 1.0), (Gamma(3.0), 3.0), (Gamma(0.25), 0.25)],
)
def test_gaps_have_the_mean_and_the_variation(pattern: Pattern, variation: float) -> None:
    gaps = list(islice(pattern.gaps(20.0, random.Random(1)), 60_000))
    assert statistics.mean(gaps) == pytest.approx(1 / 20.0, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.05)


def test_bursts_have_the_rate_and_the_share_of_time() -> None:
    """In phases with requests they come (on + off) / on times as often; the number in a window varies far more than at random."""
    pattern, times, now = Bursts(2.0, 8.0), list[float](), 0.0
    for gap in islice(pattern.gaps(10.0, random.Random(2)), 200_000):
        now += gap
        times.append(now)
    assert len(times) / now == pytest.approx(10.0, rel=0.05)
    counts = [0] * (int(now) + 1)
    for each in times:
        counts[int(each)] += 1
    busy = [
        each for before, each, after in zip(counts, counts[1:], counts[2:], strict=False) if min(before, after) > 20
    ]
    assert sum(each == 0 for each in counts) / len(counts) > 0.6
    assert statistics.mean(busy) == pytest.approx(50.0, rel=0.1)


def test_the_same_seed_gives_the_same_load() -> None:
    def times(seed: int) -> list[float | None]:
        requests = iter(lambda: ("text", {}), None)
        return [each.seconds for each in open_loop(requests, 5.0, 20.0, seed, Gamma(2.0))]

    assert times(1) == times(1) != times(2)
    assert all(each is not None and each < 20.0 for each in times(1))


def test_patterns_are_parsed() -> None:
    assert [pattern_of(each) for each in ("poisson", "gamma:3", "bursts:2,8")] == [Poisson(), Gamma(3), Bursts(2, 8)]
    for wrong in ("gamma", "gamma:0", "bursts:2", "bursts:2,-1", "poisson:1", "gamma:x", "gamma:inf", "burst:1,2"):
        with pytest.raises(ConfigError, match=f"arrivals '{wrong}': must be poisson, gamma:VARIATION"):
            pattern_of(wrong)


@pytest.mark.parametrize("seed", range(5))
def test_requests_amid_others_come_at_just_the_rate(seed: int) -> None:
    arrivals = amid_others(iter([("text", {})] * 400), 20.0, 200, 100, seed, Poisson())
    times = [each.seconds or 0.0 for each in arrivals]
    assert len(times) == 400
    assert times[299] - times[99] == pytest.approx(10.0), "200 of 20 a second"
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(1.0, rel=0.2)
