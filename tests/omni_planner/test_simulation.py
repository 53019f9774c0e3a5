"""Simulated pipelines against what queueing theory says, and against schedules by hand."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_planner.clock import Clock, Gpu, Thread
from omni_planner.estimate import CLIENT, Estimate, Visit
from omni_planner.load import Arrival, Flight, Load, draw, under_way
from omni_planner.simulation import Outcome, simulate
from omni_planner.trials import shares_of

Functions = Callable[..., tuple[PipelineConfig, Estimate]]


def seconds(outcome: Outcome) -> list[float]:
    """Return how long each request took."""
    return [each.ended - each.arrived for each in outcome.flights if each.ended is not None]


def test_one_server_with_random_arrivals_waits_as_long_as_theory_says(functions: Functions) -> None:
    """M/D/1: the mean time in the system is s + s * load / (2 * (1 - load))."""
    service, load = 0.01, 0.7
    outcome = simulate(*functions("a", seconds=service), Load({"text": 1.0}, 20_000, load / service))
    assert len(outcome.flights) == 20_000
    assert statistics.mean(seconds(outcome)) == pytest.approx(service + service * load / (2 * (1 - load)), rel=0.05)
    assert outcome.stages["a"] == pytest.approx(load, rel=0.02)


def test_bursts_make_requests_wait_longer(functions: Functions) -> None:
    load = Load({"text": 1.0}, 5000, 50.0)
    regular, random, bursts = (
        statistics.mean(seconds(simulate(*functions("a", seconds=0.01), evolve(load, variation=each))))
        for each in (0.1, 1.0, 3.0)
    )
    assert regular == pytest.approx(0.01, rel=0.02)
    assert bursts > 2 * random > 2 * regular


def test_stages_in_a_row_work_at_once_and_replicas_take_turns(functions: Functions) -> None:
    load = Load({"text": 1.0}, 200, in_flight=8)
    outcome = simulate(*functions("a", "b", seconds=0.01), load)
    assert 200 / outcome.seconds == pytest.approx(100.0, rel=0.03)
    assert outcome.in_flight == pytest.approx(8, rel=0.05)
    both = simulate(*functions("a", seconds=0.01, replicas=2), load)
    assert [each.placement["a"] for each in both.flights] == [0, 1] * 100
    assert 200 / both.seconds == pytest.approx(200.0, rel=0.03)
    assert both.stages.keys() == {"a.0", "a.1"}


def test_messages_take_time_at_both_ends_and_none_inside_a_process(functions: Functions) -> None:
    for process, ends in ((None, 6), ("both", 4)):
        made = functions("a", "b", seconds=0.0, message=0.001, process=process)
        assert simulate(*made, Load({"text": 1.0}, 1, in_flight=1)).seconds == pytest.approx(ends * 0.001)


def test_a_process_that_mostly_sends_and_receives_is_busy_by_its_messages(functions: Functions) -> None:
    made = functions("a", "b", seconds=0.001, message=0.01)
    shares = shares_of(simulate(*made, Load({"text": 1.0}, 400, rate=20.0)))
    assert shares["messages of a"] == pytest.approx(0.4, rel=0.1)
    assert shares["messages"] == pytest.approx(0.4, rel=0.1)
    assert shares["a"] < 0.1


def test_bytes_of_a_payload_take_time_on_the_link(functions: Functions) -> None:
    config, made = functions("a", "b", seconds=0.0)
    made.kinds["text"][0]["a"].prompt = 1000
    device = evolve(made.device, rates=evolve(made.device.rates, copy=1e6, latency=0.001))
    slow = evolve(made, hidden={"a": 50}, device=device)
    taken = 2 * 50 * 1000 / 1e6
    assert simulate(config, slow, Load({"text": 1.0}, 1, in_flight=1)).seconds == pytest.approx(taken + 0.003)


def test_requests_above_the_limit_are_refused(functions: Functions) -> None:
    config, made = functions("a", seconds=1.0)
    outcome = simulate(evolve(config, max_in_flight=3), made, Load({"text": 1.0}, 20, 1000.0))
    assert [each.refused for each in outcome.flights] == [False] * 3 + [True] * 17
    again = simulate(evolve(config, max_in_flight=1), made, Load({"text": 1.0}, 20, in_flight=2))
    assert all(each.ended is not None for each in again.flights), "clients of refused requests go on a second later"


def test_the_kind_of_a_request_does_not_follow_from_when_it_comes(functions: Functions) -> None:
    _, made = functions("a", seconds=0.01)
    made = evolve(made, kinds=dict.fromkeys(("text", "speech"), made.kinds["text"]))
    arrivals = Load({"text": 1.0, "speech": 1.0}, 5000, 100.0, seed=3).arrivals(made)
    gaps: dict[str, list[float]] = {"text": [], "speech": []}
    for before, each in pairwise(arrivals):
        gaps[each.kind].append((each.seconds or 0.0) - (before.seconds or 0.0))
    assert statistics.mean(gaps["text"]) == pytest.approx(statistics.mean(gaps["speech"]), rel=0.15)


@pytest.mark.parametrize("variation", [0.3, 1.0, 3.0])
def test_requests_that_count_come_at_just_the_rate_and_vary_as_asked(functions: Functions, variation: float) -> None:
    _, made = functions("a", seconds=0.01)
    load = Load({"text": 1.0}, 4000, 20.0, around=100, variation=variation)
    times = [each.seconds or 0.0 for each in load.arrivals(made)]
    assert len(times) == 4200
    assert times[4099] - times[99] == pytest.approx(200.0)
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.1)


def test_kinds_come_by_their_weights_and_samples_in_turn() -> None:
    one, two, other = ({"a": Visit(prompt=number)} for number in range(3))
    drawn = draw({"text": [one, two], "speech": [other]}, {"text": 3.0, "speech": 1.0}, 1)
    made = [next(drawn) for _ in range(4000)]
    assert [sample for kind, sample in made if kind == "text"][:4] == [one, two, one, two]
    assert sum(kind == "speech" for kind, _ in made) == pytest.approx(1000, rel=0.1)


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
        assert sum(each <= x for each in left) == pytest.approx(10_000 * share, rel=0.04)
    assert under_way([0.0, 0.0], 3) == [0.0] * 3


def test_conversations_pause_after_an_answer(functions: Functions) -> None:
    """Ten of them, each of a second of work and nine of pause."""
    outcome = simulate(*functions("a", seconds=0.1, replicas=10), Load({"text": 1.0}, 200, in_flight=10, pause=0.9))
    assert 200 / outcome.seconds == pytest.approx(10.0, rel=0.1)


def test_requests_before_and_after_those_that_count_keep_a_pipeline_busy(functions: Functions) -> None:
    """Ten requests a second, each of a second: ten replicas of twelve work."""
    load = Load({"text": 1.0}, 20, 10.0, variation=1e-3, around=20)
    outcome = simulate(*functions("a", seconds=1.0, replicas=12), load)
    assert len(outcome.flights) == 20
    assert outcome.flights[0].arrived == pytest.approx(2.1, abs=0.05)
    assert outcome.window == pytest.approx(2.0, rel=0.05)
    assert outcome.kept_up == pytest.approx(1.0, abs=0.06)
    assert outcome.in_flight == pytest.approx(10, rel=0.05)
    late = simulate(*functions("a", seconds=1.0, replicas=5), load)
    assert late.kept_up == pytest.approx(0.5, abs=0.06), "five replicas"


def test_a_setting_that_admission_does_not_know_is_an_error(functions: Functions) -> None:
    config, made = functions("a", seconds=0.1)
    with pytest.raises(ConfigError, match=r"admission\.ttfb: no such setting"):
        simulate(evolve(config, admission={"ttfb": 1.0}), made, Load({"text": 1.0}, 1, 1.0))


def test_a_gpu_is_shared_equally_and_a_thread_does_one_thing_after_another() -> None:
    clock = Clock()
    gpu, thread, ends = Gpu(clock), Thread(clock), list[tuple[str, float]]()

    def noted(name: str) -> Callable[[], Any]:
        return lambda: ends.append((name, clock.now))

    clock.after(0.0, lambda: gpu.compute(2.0, noted("long")))
    clock.after(1.0, lambda: gpu.compute(0.5, noted("short")))
    clock.run()
    assert ends == [("short", pytest.approx(2.0)), ("long", pytest.approx(2.5))]
    assert gpu.busy == pytest.approx(2.5)
    assert [thread.work(1.0), thread.work(2.0), thread.busy] == [1.0, 3.0, 3.0]


@pytest.mark.parametrize("ends", [[3, 1, 2], [1, 1, 1]])
def test_things_happen_in_the_order_of_their_times_until_the_clock_is_halted(ends: list[float]) -> None:
    clock, seen = Clock(), list[tuple[float, int]]()
    for number, each in enumerate(ends):
        clock.after(each, lambda number=number: seen.append((clock.now, number)))  # type: ignore[misc]
    clock.after(10.0, clock.halt)
    clock.after(11.0, lambda: seen.append((clock.now, -1)))
    clock.run()
    assert seen == sorted((each, number) for number, each in enumerate(ends))
