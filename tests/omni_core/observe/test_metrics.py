"""Counts of durations, and the counters of a stage."""

from __future__ import annotations

import pytest

from omni_core.observe.metrics import Histogram, StageMetrics


def test_quantiles_lie_in_the_buckets_of_the_durations() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) == 0.0
    for seconds in [0.001] * 90 + [1.0] * 10:
        histogram.observe(seconds)
    assert 0.0005 <= histogram.quantile(0.5) <= 0.002
    assert 0.5 <= histogram.quantile(0.99) <= 2.0
    assert histogram.total == pytest.approx(10.09)


def test_durations_beyond_the_buckets_are_counted_in_the_first_and_the_last() -> None:
    histogram = Histogram()
    for seconds in (-1.0, 0.0, 1e-9, 1e9):
        histogram.observe(seconds)
    assert (histogram.counts[0], histogram.counts[-1]) == (3, 1)


def test_counters_are_cumulative_and_leave_out_empty_buckets() -> None:
    metrics = StageMetrics(completed=3)
    for seconds in (1e-6, 0.01, 0.01):
        metrics.latency.observe(seconds)
    metrics.sent("b", 10, 0.5)
    metrics.sent("b", 5, 0.25)
    counters = metrics.as_counters()
    assert [value for name, value in counters.items() if ".le." in name] == [1.0, 3.0]
    assert (counters["completed"], counters["latency.count"]) == (3.0, 3.0)
    edge = {name: value for name, value in counters.items() if name.startswith("edge.b.")}
    assert edge == {"edge.b.messages": 2.0, "edge.b.bytes": 15.0, "edge.b.seconds": 0.75}
