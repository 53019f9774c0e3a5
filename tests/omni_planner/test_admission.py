"""Admission by objectives: what is promised holds in simulated time, with exact estimates and with learnt ones."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from omni_core.config.schema import PipelineConfig
from omni_core.coordinator.actions import Ended, Start
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.turns import AdmittingMachine
from omni_core.errors import ConfigError, OverloadedError
from omni_core.interface import VOCODER, Interface
from omni_core.launch.running import machine_of
from omni_core.protocol.messages import OmniRequest
from omni_planner.admission.estimates import Company, Estimates
from omni_planner.admission.options import Options
from omni_planner.admission.policy import Objectives
from omni_planner.estimate import Estimate
from omni_planner.load import Load
from omni_planner.simulation import simulate

Functions = Callable[..., tuple[PipelineConfig, Estimate]]

costs = st.floats(0.0, 0.5)
loads = st.lists(st.tuples(st.floats(0.0, 0.6), st.floats(0.0, 2.0)), min_size=1, max_size=30)


@define
class Exact:
    """Knows what company costs."""

    alone: float
    waiting: float
    begun: float
    later: float

    def seconds(self, stage: str, company: Company) -> float:
        kinds = (company.waiting, company.begun, company.later)
        costs = (self.waiting, self.begun, self.later)
        return self.alone + sum(cost * sum(each.values()) for cost, each in zip(costs, kinds, strict=True))

    def observe(self, stage: str, company: Company, seconds: float) -> None:
        pass


@define(eq=False)
class Seen:
    """A request as it went: when it came, began, was heard and ended, and if it was refused."""

    came: float
    lasts: float
    began: float | None = None
    heard: float | None = None
    ended: float | None = None
    refused: float | None = None
    found: int = 0  # in flight when it began, or was refused
    ahead: tuple[int, int] = (0, 0)
    left: float = 1.0


@define
class Replay:
    """Runs requests; the world is computed here, apart from the policy's own account of it."""

    exact: Exact
    options: Options
    seen: list[Seen] = field(factory=list)
    order: list[int] = field(factory=list)

    def run(self, load: Sequence[tuple[float, float]]) -> None:
        """``load``: of each request, the seconds since the one before, and those from its first output to its end."""
        machine = AdmittingMachine(policy=Objectives(self.options, self.exact), terminal_stages=["out"])
        number = count()
        events: list[tuple[float, int, str, int]] = []
        came = 0.0
        for index, (gap, lasts) in enumerate(load):
            came += gap
            self.seen.append(Seen(came, lasts))
            heapq.heappush(events, (came, next(number), "come", index))
        now = 0.0
        while True:
            waits = {i: self._rate(i) for i in self.order if self.seen[i].heard is None}
            firsts = [(now + self.seen[i].left * seconds, i) for i, seconds in waits.items()]
            due = machine.next_timer()
            moments = [*(when for when, _ in firsts), *([due] if due is not None else []), *(e[0] for e in events[:1])]
            if not moments:
                break
            then = max(now, min(moments))
            for i, seconds in waits.items():
                self.seen[i].left -= (then - now) / seconds
            now = then
            actions = []
            first = min(firsts, default=(float("inf"), -1))
            if first[0] <= now:
                self.seen[first[1]].heard = now
                heapq.heappush(events, (now + self.seen[first[1]].lasts, next(number), "end", first[1]))
                actions += machine.result(str(first[1]), "out", None, final=False, now=now)
            elif events and events[0][0] <= now:
                _, _, what, index = heapq.heappop(events)
                if what == "come":
                    actions += machine.submit(OmniRequest(), str(index), wants_partial=True, now=now)[1]
                else:
                    self.seen[index].ended = now
                    actions += machine.result(str(index), "out", None, final=True, now=now)
            else:
                actions += machine.clock(now)
            self._note(actions, now)

    def _rate(self, index: int) -> float:
        later = self.order[self.order.index(index) + 1 :]
        waiting, begun = self.seen[index].ahead
        together = sum(self.seen[i].ended is None for i in later)
        return self.exact.alone + self.exact.waiting * waiting + self.exact.begun * begun + self.exact.later * together

    def _note(self, actions: Sequence[object], now: float) -> None:
        for action in actions:
            running = [self.seen[i] for i in self.order if self.seen[i].ended is None]
            if isinstance(action, Start):
                index = int(action.request.request_id)
                each = self.seen[index]
                each.began, each.found = now, len(running)
                waiting = sum(other.heard is None for other in running)
                each.ahead = (waiting, len(running) - waiting)
                self.order.append(index)
            elif isinstance(action, Ended) and isinstance(action.request.error, OverloadedError):
                assert action.request.error.retry_after > 0
                each = self.seen[int(action.request.request_id)]
                each.refused, each.found = now, len(running)


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
def test_a_simulated_pipeline_keeps_its_objective_under_overload(functions: Functions, overload: float) -> None:
    """One server: with twice its load nearly all that begin are in time, and it has hardly less to do than without."""
    service, objective = 0.01, 0.1
    config, made = functions("a", seconds=service)
    load = Load({"text": 1.0}, int(30 * overload / service), overload / service)
    shares, rates = [], []
    for admission in ({"a": objective}, {}):
        outcome = simulate(evolve(config, admission=admission), made, load)
        done = [one for one in outcome.flights if not one.refused]
        assert all(one.ended is not None for one in outcome.flights)
        shares.append(statistics.mean(one.events[0][0] - one.arrived <= objective for one in done))
        rates.append(len(done) / outcome.seconds)
    assert shares[0] > 0.9
    assert rates[0] > (0.85 if overload > 1 else 0.95) * rates[1]
    if overload > 1:
        assert shares[1] < 0.1


def test_without_settings_the_machine_is_the_cores_own(functions: Functions) -> None:
    assert machine_of(functions("a", seconds=1.0)[0]) is RequestMachine


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
def test_settings_that_are_wrong_are_named(functions: Functions, given: dict[str, Any], problem: str) -> None:
    config, _ = functions("a", seconds=1.0)
    with pytest.raises(ConfigError, match=problem):
        machine_of(evolve(config, admission=given))


def test_objectives_name_stages_by_what_they_make(functions: Functions) -> None:
    config, _ = functions("text", "sound", seconds=1.0)
    config = evolve(
        config,
        stages=[evolve(each, terminal=True) for each in config.stages],
        interface=Interface(roles={VOCODER: "sound"}),
        admission={"ttft": 1, "ttfa": 2},
    )
    assert Options.of(config).objectives == {"text": 1.0, "sound": 2.0}
