"""The number of replicas by the queue, without processes and with a clock that is given."""

from __future__ import annotations

from typing import Any

import pytest

from omni_cli.live.autoscale import AutoscaleSettings, Demand, QueueTime
from omni_core.config.settings import read_settings
from omni_core.errors import ConfigError


def policy(**fields: Any) -> QueueTime:
    return QueueTime(
        AutoscaleSettings(**{"max": 4, "queue_seconds": 1.0, "after": 3.0, "idle_seconds": 10.0, **fields})
    )


def test_one_more_when_requests_have_waited_too_long_for_a_while() -> None:
    decides = policy()
    # Two are completed in a second and six wait: a new one would wait for three seconds.
    wanted = [decides.decide(Demand(1, 6, 7, 2.0 * second), float(second)) for second in range(8)]
    assert wanted == [1, 1, 1, 1, 2, 1, 1, 1], (
        "three seconds after the rate was known, and then it has to be earned anew"
    )


def test_a_queue_that_is_served_quickly_needs_none() -> None:
    decides = policy()
    assert {decides.decide(Demand(1, 6, 7, 10.0 * second), float(second)) for second in range(20)} == {1}


def test_a_short_peak_needs_none() -> None:
    decides = policy()
    waiting = [6, 6, 6, 0, 6, 6, 6, 0, 6, 6, 6]
    assert {decides.decide(Demand(1, each, 7, 2.0 * at), float(at)) for at, each in enumerate(waiting)} == {1}


def test_where_nothing_is_completed_the_time_of_waiting_counts() -> None:
    decides = policy()
    wanted = [decides.decide(Demand(1, 1, 2, 0.0), float(second)) for second in range(7)]
    assert wanted == [1, 1, 1, 1, 1, 2, 1]


def test_never_more_than_max_nor_less_than_min() -> None:
    decides = policy(min=2, max=3, after=0.0, idle_seconds=1.0)
    assert decides.decide(Demand(1, 0, 0, 0.0), 0.0) == 2
    assert [decides.decide(Demand(3, 100, 100, 0.0), float(second)) for second in range(1, 6)] == [3] * 5
    assert [decides.decide(Demand(2, 0, 0, 0.0), 20.0 + second) for second in range(5)] == [2] * 5


def test_one_less_when_there_were_fewer_requests_than_replicas_for_long() -> None:
    decides = policy()
    wanted = [decides.decide(Demand(3, 0, 2, 5.0 * second), float(second)) for second in range(12)]
    assert wanted == [3] * 10 + [2, 3]
    decides = policy()
    assert {decides.decide(Demand(3, 0, 3, 5.0 * second), float(second)) for second in range(30)} == {3}


def test_the_count_of_a_replica_that_has_ended_is_no_negative_rate() -> None:
    decides = policy()
    assert decides.queue_seconds(Demand(2, 4, 4, 100.0), 0.0) == 0.0
    assert decides.queue_seconds(Demand(2, 4, 4, 104.0), 1.0) == pytest.approx(1.0)
    assert decides.queue_seconds(Demand(1, 4, 4, 60.0), 2.0) >= 0.0
    assert decides.queue_seconds(Demand(1, 4, 4, 62.0), 3.0) == pytest.approx(2.0)


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    decides = policy(after=1000.0)
    for second in range(30):
        decides.decide(Demand(1, 10, 10, 10.0 * second), float(second))
    for second in range(30, 45):
        decides.decide(Demand(1, 10, 10, 300.0 + second - 30), float(second))
    assert decides.queue_seconds(Demand(1, 10, 10, 315.0), 45.0) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "max"),
        ({"max": 0}, "max"),
        ({"max": "two"}, "max"),
        ({"max": 2, "min": 0}, "min"),
        ({"max": 2, "queue_seconds": 0}, "queue_seconds"),
        ({"max": 2, "idle": 3}, "idle_seconds"),
        ({"max": 2, "gpu": 3}, "gpu"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_settings(AutoscaleSettings, settings, "autoscale")
