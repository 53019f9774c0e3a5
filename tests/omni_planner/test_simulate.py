"""Simulated pipelines against what queueing theory says, and against hand-made schedules."""

from __future__ import annotations

import statistics
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

sys.path.insert(0, str(Path(__file__).parent))

from planner_lines import pipeline, profile

from omni_core.errors import ConfigError
from omni_planner.arrivals import open_loop
from omni_planner.machine import LOCK_SHARE
from omni_planner.profile import CLIENT, Visit
from omni_planner.requests import Arrival, Flight, closed_loop, draw, under_way
from omni_planner.simulate import simulate, summarise
from omni_planner.simulation import Outcome, Simulation


def test_one_server_with_random_arrivals_waits_as_long_as_theory_says() -> None:
    """M/D/1: the mean time in the system is s + s * load / (2 * (1 - load))."""
    service, load = 0.01, 0.7
    arrivals = open_loop(draw(profile("a", seconds=service).kinds, {"text": 1.0}, 1), load / service, 300.0, 2)
    outcome = simulate(pipeline("a"), profile("a", seconds=service), arrivals)
    times = [each.ended - each.arrived for each in outcome.flights if each.ended is not None]
    assert len(times) == len(arrivals) > 20_000
    assert statistics.mean(times) == pytest.approx(service + service * load / (2 * (1 - load)), rel=0.05)
    assert outcome.busy[0] == pytest.approx(load, rel=0.02)
    assert outcome.stages["a"] == pytest.approx(load, rel=0.02)


@pytest.mark.parametrize(("cores", "rate"), [(1, 50.0), (2, 100.0)])
def test_a_closed_loop_fills_the_processors(cores: int, rate: float) -> None:
    measured = profile("a", "b", seconds=0.01, cores=cores)
    outcome = simulate(
        pipeline("a", "b"), measured, closed_loop(draw(measured.kinds, {"text": 1.0}, 1), 200), in_flight=8
    )
    assert 200 / outcome.seconds == pytest.approx(rate, rel=0.03)
    assert {each.ended is not None for each in outcome.flights} == {True}


def test_replicas_take_turns_and_share_the_work() -> None:
    config, measured = pipeline("a", replicas=2), profile("a", seconds=0.01, cores=2)
    outcome = simulate(config, measured, closed_loop(draw(measured.kinds, {"text": 1.0}, 1), 100), in_flight=4)
    assert [each.placement["a"] for each in outcome.flights] == [0, 1] * 50
    assert 100 / outcome.seconds == pytest.approx(200.0, rel=0.05)


@pytest.mark.parametrize(("seconds", "rate"), [(0.0015, 333.0), (0.05, 20.0)])
def test_stages_of_a_process_wait_for_pythons_lock_only(seconds: float, rate: float) -> None:
    """Short turns hold the lock and are made one after another; long ones are kernels for the most part, and run side by side."""
    measured = profile("a", "b", seconds=seconds, cores=2)
    outcome = simulate(
        pipeline("a", "b", process="both"),
        measured,
        closed_loop(draw(measured.kinds, {"text": 1.0}, 1), 200),
        in_flight=4,
    )
    assert 200 / outcome.seconds == pytest.approx(rate, rel=0.12)
    assert outcome.processes["both"] == (pytest.approx(0.0, abs=1e-3), pytest.approx(400 * seconds, rel=0.1))


@pytest.mark.parametrize(("system", "later"), [("Linux", 0.02 * LOCK_SHARE), ("", 0.02)])
def test_a_scheduler_computes_while_its_process_receives(system: str, later: float) -> None:
    """On Linux each of the two threads gets a processor, and the turn waits for a part of the message, which holds Python's lock; elsewhere
    a message of 20 ms comes before a turn of 50 ms that has begun.
    """
    measured = profile("a", seconds=0.05, cores=4, message=0.02)
    measured.hardware = evolve(measured.hardware, system=system)
    (sample,) = measured.kinds["text"]
    outcome = simulate(pipeline("a"), measured, [Arrival(0.0, "text", sample), Arrival(0.01, "text", sample)])
    first = outcome.flights[0].ended
    assert first == pytest.approx(0.02 + 0.02 + 0.05 + 0.02 + 0.02 + later, abs=1e-6)


def test_requests_take_as_long_as_the_speed_of_their_second_says() -> None:
    measured = profile("a", seconds=0.05)
    (sample,) = measured.kinds["text"]
    arrivals = [Arrival(float(number), "text", sample) for number in range(63)]
    measured.drift = 0.2
    took = seconds(simulate(pipeline("a"), measured, arrivals))
    assert statistics.mean(took) == pytest.approx(0.05, rel=0.02)
    assert statistics.stdev(took) == pytest.approx(0.2 * 0.05, rel=0.1)
    measured.drift = 0.0
    assert seconds(simulate(pipeline("a"), measured, arrivals)) == pytest.approx([0.05] * 63)


def seconds(outcome: Outcome) -> list[float]:
    """Return how long each request took."""
    return [each.ended - each.arrived for each in outcome.flights if each.ended is not None]


@pytest.mark.parametrize("drift", [0.0, 0.25])
def test_what_the_speed_of_the_machine_explains_does_not_vary_by_turn(drift: float) -> None:
    """Turns of 40 and 60 ms, so that their fit is off by a fifth, and ten requests in one second."""
    measured = profile("a", seconds=0.04)
    measured.stages["a"].cost("text").observe({"turns": 1.0, "requests": 1.0}, 0.06)
    measured.drift = drift
    (sample,) = measured.kinds["text"]
    took = seconds(simulate(pipeline("a"), measured, [Arrival(number / 10, "text", sample) for number in range(10)]))
    assert len(took) == 10
    assert (statistics.stdev(took) < 1e-9) == (drift > 0.2)


def test_messages_cost_time_at_both_ends_and_none_inside_a_process() -> None:
    measured = profile("a", "b", seconds=0.0, message=0.001)
    for process, ends in ((None, 6), ("both", 4)):
        outcome = simulate(
            pipeline("a", "b", process=process),
            measured,
            closed_loop(draw(measured.kinds, {"text": 1.0}, 1), 1),
        )
        assert outcome.seconds == pytest.approx(ends * 0.001)


def test_requests_above_the_limit_are_refused() -> None:
    config, measured = evolve(pipeline("a"), max_in_flight=3), profile("a", seconds=1.0)
    arrivals = open_loop(draw(measured.kinds, {"text": 1.0}, 1), 100.0, 0.2, 1)
    outcome = simulate(config, measured, arrivals)
    assert [each.refused for each in outcome.flights] == [False] * 3 + [True] * (len(arrivals) - 3)


def test_a_stage_that_was_not_measured_is_named() -> None:
    measured = profile("a", "b", seconds=0.01)
    del measured.stages["b"]
    with pytest.raises(ConfigError, match="no stage 'b'"):
        simulate(pipeline("a", "b"), measured, closed_loop(draw(measured.kinds, {"text": 1.0}, 1), 1))


def test_the_kind_of_a_request_does_not_follow_from_when_it_comes() -> None:
    measured = profile("a", seconds=0.01)
    measured.kinds["speech"] = measured.kinds["text"]
    arrivals = open_loop(draw(measured.kinds, {"text": 1.0, "speech": 1.0}, 3), 100.0, 50.0, 3)
    gaps: dict[str, list[float]] = {"text": [], "speech": []}
    for before, each in pairwise(arrivals):
        assert each.seconds is not None
        assert before.seconds is not None
        gaps[each.kind].append(each.seconds - before.seconds)
    assert statistics.mean(gaps["text"]) == pytest.approx(statistics.mean(gaps["speech"]), rel=0.15)


def test_a_balance_that_reads_the_content_of_requests_is_an_error_that_says_so() -> None:
    measured = profile("a", seconds=0.01)
    config = pipeline("a", replicas=2, balance="planner_lines:longest")
    with pytest.raises(ConfigError, match=r"which has no content, cannot be placed: .*string indices"):
        simulate(config, measured, closed_loop(draw(measured.kinds, {"text": 1.0}, 1), 5), in_flight=1)


def test_clients_of_requests_that_end_at_once_go_on_without_recursion() -> None:
    """Each is refused and waits for a second; each that begins times out at once."""
    measured = profile("a", seconds=1.0)
    config = evolve(pipeline("a"), request_timeout=1e-9)
    outcome = simulate(config, measured, closed_loop(draw(measured.kinds, {"text": 1.0}, 1), 3000), in_flight=2)
    assert sum(each.failed for each in outcome.flights) == 3000


def test_the_expected_work_of_a_request_is_its_first_engines_prompt() -> None:
    sample = {
        "encoder": Visit([CLIENT], ["thinker"], prompt=500),
        "thinker": Visit(["encoder"], ["vocoder"], prompt=40, outputs=8),
        "talker": Visit(["thinker"], ["vocoder"], prompt=9, outputs=100),
        "vocoder": Visit(["talker"], [CLIENT], prompt=99),
    }
    flight = Flight("r", Arrival(0.0, "speech", sample), 0.0)
    assert flight.expected_work() == 41.0
    assert flight.answering(["thinker", "vocoder", "decode"]) == ["vocoder"]


def test_conversations_that_have_been_under_way_for_long_ask_at_their_steady_rate() -> None:
    """One cycle in two lasts 1 s, the other 3 s: 10,000 conversations ask 5,000 times a second, also in the first tenth of one."""
    left = under_way([3.0, 1.0], 10_000)
    assert sum(each < 0.1 for each in left) == pytest.approx(500, rel=0.1)
    for x, share in ((0.5, 0.25), (1.0, 0.5), (2.0, 0.75), (3.0, 1.0)):  # mean(min(cycle, x)) / mean(cycle)
        assert sum(each <= x for each in left) == pytest.approx(10_000 * share, rel=0.03)
    assert under_way([0.0, 0.0], 3) == [0.0] * 3
    assert 0.0 <= min(under_way([2.0, 2.0], 1000)) < max(under_way([2.0, 2.0], 1000)) <= 2.0


def test_requests_before_and_after_those_that_count_keep_a_pipeline_busy() -> None:
    """Ten requests a second, each of a second: after one second ten processors of twelve work, as long as those come that count."""
    measured = profile("a", seconds=1.0, cores=12)
    [sample] = measured.kinds["text"]
    arrivals = [Arrival(0.1 * number, "text", sample) for number in range(60)]
    outcome = simulate(pipeline("a", replicas=12), measured, arrivals, around=20)
    assert [each.arrived for each in outcome.flights] == pytest.approx([0.1 * number for number in range(20, 40)])
    assert outcome.seconds == pytest.approx(3.9)
    assert outcome.kept_up == pytest.approx(1.0, abs=0.06)
    assert outcome.busy[0] == pytest.approx(2.9 * 10 / 3.9, rel=0.05), "those that ended in 3.9 s"
    assert summarise(outcome).per_second == pytest.approx(10.0, rel=0.06)
    assert summarise(outcome).requests == 20
    simulation = Simulation(pipeline("a", replicas=12), measured, None, None, None)
    simulation.begin(arrivals, 20)
    simulation.clock.run()
    assert simulation.clock.now == pytest.approx(4.9), "the end of the last one that counts"
    late = simulate(pipeline("a", replicas=5), measured, arrivals, around=20)
    assert late.kept_up == pytest.approx(0.5, abs=0.06), "five processors"
    whole = simulate(pipeline("a", replicas=12), measured, arrivals)
    assert len(whole.flights) == 60
    assert summarise(whole).per_second == pytest.approx(60 / 6.9, rel=0.01)
    with pytest.raises(ValueError, match="of 60 requests none counts if 30 come before and 30 after"):
        simulate(pipeline("a", replicas=12), measured, arrivals, around=30)


@pytest.mark.parametrize(("arrived", "end"), [([0, 1, 2, 3, 7], 7), ([0, 1, 2, 3], 4), ([0, 1, 2, 5], 7)], ids=str)
def test_requests_that_count_come_in_as_many_intervals(arrived: list[float], end: float) -> None:
    """Up to the next one; if that has not come yet, in one more of their mean. Those from the second to the fourth count."""
    made: Any = Simulation.__new__(Simulation)
    made.flights, made._counted = [SimpleNamespace(arrived=each) for each in arrived], range(1, 4)
    assert made._arrival_after(made.flights[1:4]) == end
