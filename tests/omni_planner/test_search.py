"""The search finds the placement that is known to be the best, and says what saturates in the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_planner.devices import Accelerator, Fleet
from omni_planner.estimate import Estimate, StageEstimate, estimate
from omni_planner.figures import Objectives, Quantiles
from omni_planner.fleet import plan_fleet
from omni_planner.load import Load
from omni_planner.moves import moves
from omni_planner.search import LONGER, Search, front
from omni_planner.shapes import shapes
from omni_planner.trials import AROUND, Settings, Trial, Trials
from omni_torch.placement.work import Ask, DecoderWork, PipelineWorks, StageWork

Estimated = Callable[..., Estimate]


class Noted(Trials):
    """Trials that are written down, each with its load."""

    made: list[tuple[Load, Trial | str]]

    def of(self, settings: Settings, gpus: int, load: Load) -> Trial | str:
        found = super().of(settings, gpus, load)
        self.made = [*getattr(self, "made", []), (load, found)]
        return found


@pytest.fixture
def trials(line: PipelineConfig, estimated: Estimated, gpu: Accelerator) -> Callable[..., Noted]:
    """Return trials of ``line`` with objectives, and requests of ``reply`` tokens."""

    def made(slo: str, reply: int = 100, **rates: float) -> Noted:
        return Noted(line, estimated(reply, **rates), Objectives.parse(slo), gpu.memory)

    return made


@pytest.fixture
def two_engines(line: PipelineConfig, estimated: Estimated, decoder: DecoderWork, gpu: Accelerator) -> Any:
    """Return trials of 100 steps of 1 ms in one engine and then in another."""

    def made(slo: str, work: DecoderWork = decoder) -> Noted:
        names, speak = ("think", "speak"), line.stage("speak")
        stages = [evolve(speak, name="think", process="think", next="speak", terminal=False), speak]
        config = evolve(line, stages=stages)
        works = PipelineWorks(
            dict.fromkeys(names, work), lambda ask: {name: StageWork(ask.text, ask.reply) for name in names}
        )
        asks = {"text": Ask(text=10, reply=100)}
        return Noted(config, estimate(config, estimated().device, asks, works), Objectives.parse(slo), gpu.memory)

    return made


def trial(cost: int, excess: float, seconds: float) -> Trial:
    config = PipelineConfig(name="p", model_path="", stages=[])
    return Trial({}, config, cost, {"done": Quantiles(seconds, seconds)}, excess, 1.0, 0.0, {})


def test_shapes_are_ranked_by_the_busiest_gpu(line: PipelineConfig, estimated: Estimated) -> None:
    ranked = shapes(estimated(), line, {"text": 1.0}, 10.0, 2)
    assert [each.work for each in ranked] == sorted(each.work for each in ranked)
    assert any("tp 2" in each.text for each in ranked)
    apart = next(each for each in ranked if each.text == "speak on 1; encode on 1")
    assert (apart.settings["speak.gpu"], apart.settings["encode.gpu"]) == (0, 1)
    assert not [each.text for each in ranked if "encode (tp" in each.text], "a pass has no ranks"


def test_every_engine_may_have_ranks(two_engines: Any) -> None:
    made = two_engines("done=0.12")
    ranked = shapes(made.estimate, made.config, {"text": 1.0}, 1.0, 4)
    names = {each.text for each in ranked}
    assert {"think (tp 2) on 2; speak (tp 2) on 2", "think on 2; speak (tp 2) on 2", "think + speak on 4"} <= names
    both = next(each for each in ranked if each.text == "think (tp 2) on 2; speak (tp 2) on 2")
    assert {name: both.settings[f"{name}.tp_size"] for name in ("think", "speak")} == {"think": 2, "speak": 2}
    assert both.settings["speak.gpu"] == [2, 3]
    found = Search(made, Load({"text": 1.0}, 20, in_flight=1)).run(4)
    assert found[-1].excess == 0, "0.2 s alone, and 0.1 s if two ranks share each engine's weights"
    assert all(found[-1].config.stage(name).tp_size > 1 for name in ("think", "speak"))


@pytest.mark.parametrize("allowed", [(1,), (1, 2)])
def test_only_the_ranks_that_a_pipeline_says_are_tried(
    two_engines: Any, decoder: DecoderWork, allowed: tuple[int, ...]
) -> None:
    search = Search(two_engines("done=0.01", evolve(decoder, ranks=allowed)), Load({"text": 1.0}, 20, rate=1.0))
    search.run(4)
    assert {stage.tp_size for trial in search.made for stage in trial.config.stages} == set(allowed)


def test_the_front_has_more_gpus_only_where_they_help(trials: Callable[..., Noted]) -> None:
    """One step of 1 ms for each of 100 tokens: 0.1 s alone, and half of it on two GPUs that share the weights."""
    load = Load({"text": 1.0}, 60, rate=2.0)
    found = Search(trials("done=0.2"), load).run(2)
    assert (found[0].cost, found[0].excess) == (1, 0)
    assert found[0].figures["done"].p95 == pytest.approx(0.12, abs=0.06)
    assert "speak" in found[0].reason
    assert all(each.excess for each in Search(trials("done=0.01"), load).run(2))


def test_a_front_leaves_out_what_costs_more_and_is_no_better_but_for_chance() -> None:
    cheap, same, better = trial(1, 0.0, 1.0), trial(2, 0.0, 0.97), trial(3, 0.0, 0.5)
    missed = trial(1, 0.5, 0.1)
    assert front([better, same, cheap], "done") == [cheap, better]
    assert front([missed, same], "done") == [missed, same]
    assert front([missed, trial(2, 0.49, 0.01)], "done") == [missed]


def test_changes_on_few_gpus_leave_trials_for_more(two_engines: Any) -> None:
    """One engine after the other, 0.2 s: half of that needs two GPUs of two ranks, whatever one GPU is tried with before."""
    search = Search(two_engines("done=0.12"), Load({"text": 1.0}, 20, rate=1.0), budget=9)
    search.run(4)
    assert max(each.cost for each in search.made) == 4
    assert len(search.made) <= 9


def test_nothing_is_changed_where_the_objectives_are_met(trials: Callable[..., Noted]) -> None:
    search = Search(trials("done=9"), Load({"text": 1.0}, 20, rate=1.0))
    search.run(1)
    assert len(search.made) == 1


def test_a_load_that_no_gpu_keeps_up_with_is_named(trials: Callable[..., Noted]) -> None:
    search = Search(trials("done=9"), Load({"text": 1.0}, 20, rate=1e6))
    assert search.run(1) == []
    assert "the busiest would compute" in search.refusals["1 GPU"]


def test_a_placement_is_confirmed_by_a_longer_simulation(trials: Callable[..., Noted]) -> None:
    """Objectives that are met for a while only are missed; the queue of a closed loop cannot grow, so it is not simulated again."""
    made = trials("done=0.3")
    [found] = Search(made, Load({"text": 1.0}, 40, rate=20.0)).run(1)
    assert [load.total for load, _ in made.made] == [40, LONGER]
    assert found is made.made[-1][1]

    class Growing(Noted):
        def of(self, settings: Settings, gpus: int, load: Load) -> Trial | str:
            found = super().of(settings, gpus, load)
            return evolve(found, excess=0.5) if isinstance(found, Trial) and load.total == LONGER else found

    growing = Growing(made.config, made.estimate, made.objectives, made.gpu_bytes)
    [missed] = Search(growing, Load({"text": 1.0}, 40, rate=20.0)).run(1)
    assert missed.excess == 0.5
    closed = trials("done=0.3")
    Search(closed, Load({"text": 1.0}, 40, in_flight=4)).run(1)
    assert {load.total for load, _ in closed.made} == {40}


def test_a_placement_that_a_request_of_a_longer_simulation_does_not_fit_is_refused(
    line: PipelineConfig, trials: Any
) -> None:
    class Rare(Noted):
        def of(self, settings: Settings, gpus: int, load: Load) -> Trial | str:
            return "a rare request does not fit" if load.total == LONGER else super().of(settings, gpus, load)

    usual = trials("done=0.3")
    search = Search(Rare(line, usual.estimate, usual.objectives, usual.gpu_bytes), Load({"text": 1.0}, 40, rate=20.0))
    [found] = search.run(1)
    assert found.excess == 0, "the short one is all there is"
    assert "a rare request does not fit" in search.refusals.values()


def test_as_many_requests_come_before_those_that_count_as_while_one_lasts(trials: Callable[..., Noted]) -> None:
    """Messages take half a second, so 150 requests are always under way; of 200 from the start many would find fewer."""
    made = trials("done=9", reply=1, latency=0.5)
    found = made.of({}, 1, Load({"text": 1.0}, 200, rate=100.0))
    assert isinstance(found, Trial)
    assert found.coming == pytest.approx(150, rel=0.1)
    assert made.lasting == pytest.approx(1.5, rel=0.1)
    assert not found.is_growing
    assert not found.excess


@pytest.mark.parametrize(("above", "grows"), [(0.9, False), (1.1, True), (3.0, True)])
def test_a_load_above_the_capacity_is_not_borne_however_loose_the_objectives_are(
    trials: Callable[..., Noted], above: float, grows: bool
) -> None:
    """Of 5,000 requests a second of 0.2 ms each, those that come on top wait ever longer."""
    found = trials("done=60", reply=1).of({}, 1, Load({"text": 1.0}, LONGER, rate=5000.0 * above))
    assert isinstance(found, Trial)
    assert (found.is_growing, found.excess > 0) == (grows, grows)
    assert found.per_second == pytest.approx(5000.0 * min(1.0, above), rel=0.05)


def test_messages_that_come_faster_than_they_are_handled_are_not_borne(trials: Callable[..., Noted]) -> None:
    """The client's thread handles two messages of 10 ms for a request: 50 a second."""
    for rate, grows in ((40.0, False), (60.0, True)):
        found = trials("done=1000", reply=1, message=0.01).of({}, 1, Load({"text": 1.0}, 250, rate=rate))
        assert isinstance(found, Trial)
        assert found.is_growing == grows
        assert found.shares["messages"] == pytest.approx(min(1.0, rate / 50), rel=0.1)


def test_those_of_a_closed_loop_that_begin_together_do_not_count(trials: Callable[..., Noted]) -> None:
    found = trials("done=9", reply=20).of({}, 1, Load({"text": 1.0}, 150, in_flight=400))
    assert isinstance(found, Trial)
    steady = trials("done=9", reply=20).of({}, 1, Load({"text": 1.0}, 1500, in_flight=400))
    assert isinstance(steady, Trial)
    assert found.figures["done"].p95 == pytest.approx(steady.figures["done"].p95, rel=0.1)


def test_refused_requests_miss_the_objectives(trials: Callable[..., Noted]) -> None:
    made = trials("done=9")
    made.config = evolve(made.config, max_in_flight=1)
    found = made.of({}, 1, Load({"text": 1.0}, 100, rate=20.0))
    assert isinstance(found, Trial)
    assert found.excess == found.refused > 0.1
    assert "of the requests are refused" in found.reason


def test_a_fleet_has_as_many_cells_as_the_load_needs(trials: Callable[..., Noted], gpu: Accelerator) -> None:
    """A conversation is 10 ms of work and 0.9 s of pause. A step costs more the more requests it has."""
    load, fleet = Load({"text": 1.0}, 50, in_flight=4000, pause=0.9), Fleet(50, 2, gpu)
    found = plan_fleet(trials("done=0.05", 10, row=1e-4), load, fleet, spare=1)
    assert found.cells == found.hosts * (2 // found.cell.gpus)
    assert found.usual.excess == found.degraded.excess == 0
    assert (found.cells - 2 // found.cell.gpus) * found.cell.bears >= 1 - 1e-9, "also after the loss of a host"
    assert found.hosts > 2
    without = plan_fleet(trials("done=0.05", 10, row=1e-4), load, fleet, spare=0)
    assert without.hosts == found.hosts - 1
    assert without.usual is without.degraded
    with pytest.raises(ConfigError, match=r"needs \d+ hosts, 1 of them spare; --devices has 1"):
        plan_fleet(trials("done=0.05", 10, row=1e-4), load, Fleet(1, 2, gpu), spare=1)


@pytest.mark.parametrize(
    "load", [Load({"text": 1.0}, 20, in_flight=200_000, pause=0.9), Load({"text": 1.0}, 20, rate=2e5)]
)
def test_cells_that_bear_much_are_simulated_with_few_requests(load: Load, gpu: Accelerator, trials: Any) -> None:
    """The encoder takes 0.2 ms for a request, so a cell bears no more than 5,000 a second, which its engine computes together."""
    made = trials("done=0.5", reply=1)
    found = plan_fleet(made, load, Fleet(5000, 1, gpu))
    assert 3000 < 2e5 * found.cell.bears / (0.9 if load.pause else 1.0) < 5000


def test_a_load_that_no_cell_bears_says_what_is_missed(trials: Callable[..., Noted], gpu: Accelerator) -> None:
    with pytest.raises(ConfigError, match="misses the objectives even with") as raised:
        plan_fleet(trials("done=0.001"), Load({"text": 1.0}, 20, rate=1e4), Fleet(9, 1, gpu))
    assert "cells of 1 GPU (speak + encode on 1)" in str(raised.value)


def test_a_cell_that_bears_its_load_for_a_while_only_gets_less(
    line: PipelineConfig, gpu: Accelerator, trials: Any
) -> None:
    class Late(Noted):
        """A load of more than 300 a second is too much for long."""

        def of(self, settings: Settings, gpus: int, load: Load) -> Trial | str:
            found = super().of(settings, gpus, load)
            late = load.total == LONGER and (load.rate or 0) > 300
            return evolve(found, excess=0.5) if late and isinstance(found, Trial) else found

    usual = trials("done=0.5", 10)
    late = Late(line, usual.estimate, usual.objectives, gpu.memory)
    found = plan_fleet(late, Load({"text": 1.0}, 20, rate=1000.0), Fleet(50, 1, gpu), spare=0)
    assert found.hosts == 4


def test_what_may_help_is_tried_of_the_busiest_stages(line: PipelineConfig, estimated: Estimated) -> None:
    arguments = {"initial_chunk": 4, "chunk": 24, "growth": None}
    vocoder = evolve(line.stage("speak"), name="vocoder", process="vocoder", factory_args=arguments)
    config = evolve(
        line, stages=[*line.stages[:1], evolve(line.stage("speak"), terminal=False, next="vocoder"), vocoder]
    )
    stages = {**estimated().stages, "vocoder": StageEstimate("vocoder", estimated().device)}
    made = evolve(estimated(), stages=stages)
    busy = Trial({}, config, 1, {}, 1.0, 1.0, 0.0, {"speak": 0.9})
    found = list(moves(busy, made))
    assert {"vocoder.factory_args.growth": 1.0} in found
    assert {"vocoder.factory_args.initial_chunk": 2, "vocoder.factory_args.chunk": 24} in found
    assert {"speak.factory_args.max_running": 64} in found
    idle = list(moves(evolve(busy, shares={"speak": 0.5}), made))
    assert not any("speak" in path for change in idle for path in change)
    split = evolve(config.stage("speak"), gpu=[0, 1], replicas=2)
    config = evolve(config, stages=[config.stages[0], split, vocoder])
    ranks = next(moves(evolve(busy, config=config), made))
    assert ranks == {"speak.tp_size": 2, "speak.replicas": 1, "speak.balance": "turns"}


def test_no_more_requests_come_before_those_that_count_than_are_simulated_in_a_moment(trials: Any) -> None:
    found = trials("done=99", reply=1, latency=5.0).of({}, 1, Load({"text": 1.0}, 100, rate=500.0))
    assert isinstance(found, Trial)
    assert found.coming > AROUND
