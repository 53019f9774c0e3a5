"""Admission by objectives: what is promised holds in simulated time, with exact estimates and with learnt ones."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from admission_replay import Exact, Replay
from planner_lines import pipeline, profile

from omni_core.coordinator.request_machine import RequestMachine
from omni_core.errors import ConfigError
from omni_core.interface import VOCODER, Interface
from omni_core.launch.running import machine_of
from omni_planner.admission.estimates import Company, Estimates
from omni_planner.admission.options import Options
from omni_planner.arrivals import open_loop
from omni_planner.requests import draw
from omni_planner.simulate import simulate

costs = st.floats(0.0, 0.5)
loads = st.lists(st.tuples(st.floats(0.0, 0.6), st.floats(0.0, 2.0)), min_size=1, max_size=30)


@settings(max_examples=300, deadline=None)
@given(loads, costs, costs, costs, st.floats(0.21, 2.0), st.sampled_from([None, 0.0, 0.7, 1000.0]))
def test_whatever_begins_is_in_time_and_everything_begins_or_is_refused(
    load: list[tuple[float, float]], waiting: float, begun: float, later: float, objective: float, wait: float | None
) -> None:
    replay = Replay(Exact(0.2, waiting, begun, later), Options({"out": objective}, wait))
    replay.run(load)
    for each in replay.seen:
        assert (each.began is None) != (each.refused is None)
        if each.refused is not None:
            assert each.found > 0  # nobody is refused by an idle pipeline
            assert each.refused - each.came <= (wait if wait is not None else objective) + 1e-3
            continue
        assert each.began is not None
        assert each.heard is not None
        assert each.ended is not None
        assert each.heard <= (each.came if wait is None else each.began) + objective + 1e-3
    assert replay.order == sorted(replay.order)  # none is overtaken
    if wait == 1000.0:
        assert len(replay.order) == len(load)


@settings(max_examples=50, deadline=None)
@given(loads)
def test_an_objective_that_cannot_be_met_lets_one_after_another_begin(load: list[tuple[float, float]]) -> None:
    replay = Replay(Exact(0.2, 0.1, 0.1, 0.1), Options({"out": 0.1}))
    replay.run(load)
    assert replay.seen[0].began == replay.seen[0].came
    for each in replay.seen:
        assert (each.began is None) == (each.refused is not None)
        assert each.found == 0 or each.refused is not None


@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "all at once"])
def test_estimates_learn_if_requests_are_served_in_turn_or_together(together: bool) -> None:
    """Bursts of one to nine: in turn, each waits for those ahead; together, all have their first output at the end."""
    estimates, group = Estimates(), frozenset({"out"})
    for round in range(30):
        burst = 1 + round % 9
        for number in range(burst):
            company = Company({group: number}, {}, {group: burst - 1 - number})
            estimates.observe("out", company, 0.1 * (burst if together else 1 + number))
    for ahead in (0, 4, 8):
        found = estimates.seconds("out", Company({group: ahead}, {}, {}))
        assert found == pytest.approx(0.1 * (1 + ahead), rel=0.1)
    later = estimates.seconds("out", Company({}, {}, {group: 5}))
    assert later == pytest.approx(0.6 if together else 0.1, rel=0.15)


def test_what_company_costs_fades_when_there_is_none() -> None:
    estimates, group = Estimates(), frozenset({"out"})
    for ahead in (0, 1, 2, 0, 1, 2):
        estimates.observe("out", Company({group: ahead}, {}, {}), 0.1 + ahead)
    before = estimates.seconds("out", Company({group: 1.0}, {}, {}))
    for _ in range(600):
        estimates.observe("out", Company({}, {}, {}), 0.1)
    assert before > 1.0
    assert estimates.seconds("out", Company({group: 1.0}, {}, {})) < 0.2


@pytest.mark.parametrize("overload", [0.7, 2.0])
def test_a_simulated_pipeline_keeps_its_objective_under_overload(overload: float) -> None:
    """One server: with twice its load nearly all that begin are in time, and it has hardly less to do than without."""
    service, objective = 0.01, 0.1
    measured = profile("a", seconds=service)
    arrivals = open_loop(draw(measured.kinds, {"text": 1.0}, 1), overload / service, 30.0, 2)
    config = evolve(pipeline("a"), admission={"a": objective})
    shares, rates = [], []
    for each in (config, evolve(config, admission={})):
        outcome = simulate(each, measured, arrivals)
        done = [one for one in outcome.flights if not one.refused]
        assert all(one.ended is not None for one in outcome.flights)
        shares.append(statistics.mean(one.events[0][0] - one.arrived <= objective for one in done))
        rates.append(len(done) / outcome.seconds)
    assert shares[0] > 0.9
    assert rates[0] > (0.85 if overload > 1 else 0.95) * rates[1]
    if overload > 1:
        assert shares[1] < 0.1


def test_without_settings_the_machine_is_the_cores_own() -> None:
    assert machine_of(pipeline("a")) is RequestMachine


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ttfb": 1.0}, "admission.ttfb: no such setting; did you mean 'ttf[at]'"),
        ({"ttfa": 1.0}, "admission.ttfa: no terminal stage of this pipeline makes sound"),
        ({"ttft": 0}, "admission.ttft: must be a number of seconds above 0, is 0"),
        ({"ttft": True}, "admission.ttft: must be"),
        ({"wait": 1.0}, "admission: states no objective"),
        ({"ttft": 1.0, "wait": -1}, "admission.wait: must be"),
        ({"ttft": 1.0, "policy": "nowhere:at_all"}, "admission.policy: 'nowhere:at_all'"),
    ],
)
def test_settings_that_are_wrong_are_named(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        machine_of(evolve(pipeline("a"), admission=given))


def test_objectives_name_stages_by_what_they_make() -> None:
    config = pipeline("text", "sound")
    config = evolve(
        config,
        stages=[evolve(each, terminal=True) for each in config.stages],
        interface=Interface(roles={VOCODER: "sound"}),
        admission={"ttft": 1, "ttfa": 2},
    )
    assert Options.of(config).objectives == {"text": 1.0, "sound": 2.0}
