"""Long loads in stretches have the figures of the whole, whatever the number of processes; what remembers more is simulated as a whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from attrs import evolve

sys.path.insert(0, str(Path(__file__).parent))

from planner_lines import pipeline, profile
from test_search import line
from test_search import profile as estimated

from omni_planner import stretches
from omni_planner.arrivals import open_loop
from omni_planner.profile import PipelineProfile
from omni_planner.requests import Arrival, closed_loop, draw
from omni_planner.simulate import Outcome, simulate, summarise
from omni_planner.stretches import simulate_side_by_side


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at a tenth of the usual lengths."""
    for name in ("STRETCH", "LEAST", "BEFORE", "AFTER"):
        monkeypatch.setattr(stretches, name, getattr(stretches, name) // 10)


def measured() -> PipelineProfile:
    """Two functions whose turns vary by a third."""
    made = profile("a", "b", seconds=0.01, cores=2)
    for stage in made.stages.values():
        stage.cost("text").observe({"turns": 2.0, "requests": 2.0}, 0.03)
    return made


def load(made: PipelineProfile, rate: float, total: int) -> list[Arrival]:
    return open_loop(draw(made.kinds, {"text": 1.0}, 1), rate, total / rate, 1)


def events(outcome: Outcome) -> list[object]:
    return [(each.arrived, each.ended, each.events) for each in outcome.flights]


def test_the_figures_are_those_of_the_whole() -> None:
    made = measured()
    arrivals = load(made, 45.0, 12_000)
    whole = simulate(pipeline("a", "b"), made, arrivals)
    cut = simulate_side_by_side(pipeline("a", "b"), made, arrivals, processes=1)
    assert [each.arrived for each in cut.flights] == [each.arrived for each in whole.flights]
    assert events(cut) != events(whole), "it was not cut"
    one, other = summarise(whole), summarise(cut)
    assert one.done is not None
    assert other.done is not None
    assert other.requests == one.requests
    assert other.per_second == pytest.approx(one.per_second, rel=0.001)
    assert other.done.p50 == pytest.approx(one.done.p50, rel=0.02)
    assert other.done.p95 == pytest.approx(one.done.p95, rel=0.05)
    assert cut.busy == pytest.approx(whole.busy, rel=0.02)
    assert cut.stages == pytest.approx(whole.stages, rel=0.02)


def test_two_processes_find_what_one_does() -> None:
    made = measured()
    arrivals = load(made, 45.0, 2500)
    one, two = (simulate_side_by_side(pipeline("a", "b"), made, arrivals, processes=number) for number in (1, 2))
    assert events(one) == events(two)
    assert evolve(one, flights=[]) == evolve(two, flights=[])


def test_estimates_go_to_other_processes() -> None:
    made = estimated()
    arrivals = load(made, 20.0, 2000)
    one, two = (simulate_side_by_side(line(), made, arrivals, processes=number) for number in (1, 2))
    assert events(one) == events(two)


@pytest.mark.parametrize("rate", [90.0, 75.0])
def test_a_queue_that_grows_is_simulated_as_a_whole(rate: float) -> None:
    made = measured()
    arrivals = load(made, rate, 6000)
    whole, cut = simulate(pipeline("a", "b"), made, arrivals), simulate_side_by_side(pipeline("a", "b"), made, arrivals)
    assert events(cut) == events(whole)


def test_a_closed_loop_and_a_short_one_are_not_cut() -> None:
    made = measured()
    for arrivals in (load(made, 45.0, 1900), closed_loop(draw(made.kinds, {"text": 1.0}, 1), 5000)):
        whole, cut = (each(pipeline("a", "b"), made, arrivals) for each in (simulate, simulate_side_by_side))
        assert events(cut) == events(whole)
