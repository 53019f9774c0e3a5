"""Processes die and start again in a simulation as the runtime has it: what they held fails or runs again, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from attrs import evolve

sys.path.insert(0, str(Path(__file__).parent))

from planner_lines import pipeline, profile

from omni_core.config.schema import PipelineConfig, RestartConfig
from omni_core.errors import ConfigError
from omni_planner.arrivals import open_loop
from omni_planner.failures import Failure, at_random, failure_of
from omni_planner.profile import PipelineProfile
from omni_planner.requests import Arrival, closed_loop, draw
from omni_planner.simulate import Outcome, simulate, summarise


def measured(seconds: float = 0.01, start: float = 2.0) -> PipelineProfile:
    made = profile("a", "b", seconds=seconds, cores=4)
    made.starts = {"a": start, "b": start}
    return made


def run(
    config: PipelineConfig, failures: list[Failure], made: PipelineProfile | None = None, rate: float = 20.0
) -> Outcome:
    made = made or measured()
    return simulate(config, made, open_loop(draw(made.kinds, {"text": 1.0}, 1), rate, 10.0, 1), failures=failures)


def test_what_a_process_holds_fails_and_the_rest_waits_for_its_start() -> None:
    outcome = run(pipeline("a", "b"), [Failure(3.0, "b")])
    summary = summarise(outcome)
    assert outcome.deaths == 1
    failed = [each for each in outcome.flights if each.failed]
    assert len(failed) == summary.failed <= 2, "those of which it had something at 3 s"
    assert all(each.arrived <= 3.0 for each in failed)
    waited = [each for each in outcome.flights if 3.0 < each.arrived < 5.0]
    assert waited
    assert all(each.ended is not None and each.ended >= 5.0 for each in waited), "it serves again after 2 s"
    others = [each for each in outcome.flights if each.arrived < 2.9 or each.arrived > 6.0]
    assert all(each.ended is not None and each.ended - each.arrived < 0.3 for each in others)


def test_a_schedulers_own_thread_ends_and_starts_with_its_process() -> None:
    made = measured()
    made.hardware, made.drift = evolve(made.hardware, system="Linux"), 0.1
    outcome = run(pipeline("a", "b"), [Failure(3.0, "b"), Failure(7.0, "a")], made)
    assert outcome.deaths == 2
    assert all(each.ended is not None for each in outcome.flights)
    assert sum(each.failed for each in outcome.flights) <= 4
    late = [each for each in outcome.flights if each.arrived > 9.9]
    assert late
    assert not any(each.failed for each in late)


def test_with_retries_nothing_fails() -> None:
    config = evolve(pipeline("a", "b"), retries=1)
    arrival = Arrival(2.995, "text", measured().kinds["text"][0])
    outcome = simulate(config, measured(), [arrival], failures=[Failure(3.0, "a")])
    [flight] = outcome.flights
    assert not flight.failed
    assert flight.attempts == 2
    assert summarise(outcome).retried == 1
    assert flight.ended == pytest.approx(5.02, abs=0.03), "after the start of 2 s, both stages again"
    alone = simulate(pipeline("a", "b"), measured(), [arrival], failures=[Failure(3.0, "a")])
    assert alone.flights[0].failed


def test_a_request_whose_client_has_read_something_does_not_run_again() -> None:
    """Two functions side by side are ends; the first answers before the second dies."""
    config = evolve(pipeline("a", "b"), retries=1)
    made = measured(seconds=0.1)
    made.kinds["text"][0]["a"].targets.append("client")
    config = evolve(config, stages=[evolve(each, terminal=True) for each in config.stages])
    outcome = simulate(config, made, [Arrival(0.0, "text", made.kinds["text"][0])], failures=[Failure(0.15, "b")])
    assert outcome.flights[0].failed
    assert [stage for _, stage, _ in outcome.flights[0].events] == ["a"]


def test_replicas_that_serve_are_chosen() -> None:
    outcome = run(pipeline("a", "b", replicas=2), [Failure(3.0, "b.1")])
    during = [each for each in outcome.flights if 3.1 < each.arrived < 5.0]
    assert {each.placement["b"] for each in during} == {0}
    assert {each.placement["b"] for each in outcome.flights if each.arrived > 6.0} == {0, 1}
    assert all(each.ended is not None and each.ended - each.arrived < 0.5 for each in during)


def test_a_unit_that_dies_too_often_is_given_up() -> None:
    config = evolve(pipeline("a", "b"), restart=RestartConfig(limit=1, window=60.0))
    outcome = run(config, [Failure(2.0, "b"), Failure(5.0, "b")], measured(start=0.5))
    assert all(each.failed for each in outcome.flights if each.arrived > 5.0)
    assert not any(each.failed for each in outcome.flights if 2.6 < each.arrived < 4.9)


def test_a_lost_host_takes_its_units_until_it_is_back() -> None:
    config = pipeline("a", "b")
    config = evolve(config, hosts={"far": "tcp://x:1"}, stages=[config.stages[0], evolve(config.stages[1], host="far")])
    outcome = run(config, [Failure(3.0, "far", is_host=True, away=4.0)])
    assert outcome.deaths == 1
    waited = [each for each in outcome.flights if 3.0 < each.arrived < 8.9]
    assert all(each.ended is not None and each.ended >= 9.0 for each in waited), "3 s + 4 s away + 2 s of a start"
    assert len(outcome.busy) == 2


def test_a_process_that_dies_during_its_start_begins_it_anew() -> None:
    outcome = run(pipeline("a", "b"), [Failure(3.0, "b"), Failure(4.0, "b")])
    assert outcome.deaths == 2
    waited = [each for each in outcome.flights if 3.0 < each.arrived < 6.0]
    assert min(each.ended or 0.0 for each in waited) == pytest.approx(6.3, abs=0.1), (
        "4 s + the back-off of 0.25 s + 2 s"
    )


def test_a_closed_loop_goes_on_after_failures() -> None:
    made = measured()
    failures = at_random(["a", "b"], 3.0, 20.0, 1)
    assert failures == at_random(["a", "b"], 3.0, 20.0, 1)
    outcome = simulate(
        evolve(pipeline("a", "b"), restart=RestartConfig(limit=1000)),
        evolve(made, starts={"a": 0.1, "b": 0.1}),
        closed_loop(draw(made.kinds, {"text": 1.0}, 1), 1500),
        in_flight=4,
        failures=failures,
    )
    assert all(each.ended is not None for each in outcome.flights)
    assert 0 < sum(each.failed for each in outcome.flights) <= 4 * outcome.deaths


def test_failures_are_parsed_and_wrong_ones_named() -> None:
    assert failure_of("code2wav.1@30") == Failure(30.0, "code2wav.1")
    assert failure_of("host:b@30.5+60") == Failure(30.5, "b", is_host=True, away=60.0)
    for wrong in ("thinker", "thinker@x", "thinker@3+4", "host:b@30", "@3"):
        with pytest.raises(ConfigError, match="must be UNIT@SECONDS"):
            failure_of(wrong)
    with pytest.raises(ConfigError, match="no unit 'c'"):
        run(pipeline("a", "b"), [Failure(1.0, "c")])
    with pytest.raises(ConfigError, match="no host 'a'"):
        run(pipeline("a", "b"), [Failure(1.0, "a", is_host=True, away=1.0)])
    with pytest.raises(ConfigError, match=r"how long a takes to start.*omni calibrate --restarts"):
        run(pipeline("a", "b"), [Failure(1.0, "a")], profile("a", "b", seconds=0.01))
    with pytest.raises(ConfigError, match="more than 10000 deaths"):
        at_random(["a"], 0.001, 100.0, 1)
