"""Costs are found again from observed turns, never negative, and merged by adding."""

from __future__ import annotations

import random

import pytest

from omni_planner.costs import Cost

TRUE = {"turns": 1e-3, "rows": 2e-4, "positions": 3e-5}


def observed(seed: int, count: int, noise: float = 0.0) -> Cost:
    cost, generator = Cost.over(list(TRUE)), random.Random(seed)
    for _ in range(count):
        counts = {"turns": 1.0, "rows": float(generator.randint(0, 8)), "positions": float(generator.randint(0, 100))}
        seconds = sum(TRUE[name] * value for name, value in counts.items())
        cost.observe(counts, seconds * (1 + noise * generator.uniform(-1, 1)))
    return cost


def test_coefficients_are_found_again() -> None:
    cost = observed(1, 200)
    assert cost.coefficients() == pytest.approx(TRUE, rel=1e-3)
    assert cost.relative_error() < 1e-3
    assert observed(1, 200, noise=0.2).relative_error() == pytest.approx(0.11, abs=0.04)


def test_what_was_never_counted_costs_nothing_and_nothing_is_negative() -> None:
    cost = Cost.over(["turns", "rows"])
    for rows in (1.0, 2.0, 3.0):
        cost.observe({"turns": 1.0, "rows": rows}, 4.0 - rows)  # more rows took less time
    assert min(cost.coefficients().values()) >= 0.0
    assert Cost.over(["turns"]).coefficients() == {"turns": 0.0}
    assert Cost.over(["turns"]).relative_error() == 0.0


def test_merging_equals_observing_both() -> None:
    both, other = observed(1, 50), observed(2, 70)
    both.merge(other)
    again = observed(1, 50)
    again_other = observed(2, 70)
    assert both.turns == again.turns + again_other.turns
    assert both.coefficients() == pytest.approx(TRUE, rel=1e-3)
    with pytest.raises(ValueError, match="cannot be merged"):
        both.merge(Cost.over(["frames"]))
