"""Estimates of steps, memory and requests by arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_core.interface import Interface
from omni_planner.asks import ask_of, of_sizes
from omni_planner.devices import Accelerator, Fleet, Rates, assumed
from omni_planner.estimate import CLIENT, Device, Estimate, estimate, works_of
from omni_planner.figures import Objectives, Quantiles, figures_of, late_seconds
from omni_planner.load import Load
from omni_planner.shapes import demands
from omni_planner.simulation import simulate
from omni_planner.trials import Trial, Trials
from omni_torch.placement.work import Ask, Counts, DecoderWork, PassWork, PipelineWorks, StageWork

GIB = 2**30
Estimated = Callable[..., Estimate]


def test_a_step_takes_as_long_as_its_bytes_or_its_arithmetic(
    gpu: Accelerator, rates: Rates, decoder: DecoderWork
) -> None:
    device = Device(gpu, rates)
    assert device.seconds(decoder.demand(Counts(decodes=1), 2)) == pytest.approx(1e-3, rel=0.01)
    assert device.seconds(decoder.demand(Counts(positions=1000, prompts=1), 2)) == pytest.approx(1e-2, rel=0.01)
    exchanged = device.seconds(decoder.demand(Counts(decodes=1), 2, 2)) - 0.5e-3
    assert exchanged == pytest.approx(4 * rates.exchange, rel=0.1)
    slow = Device(gpu, evolve(rates, kernel=1e-3))
    assert slow.seconds(decoder.demand(Counts(decodes=1), 2)) == pytest.approx(24e-3), "24 kernels"


def test_a_step_has_a_part_on_a_processor(line: PipelineConfig, estimated: Estimated) -> None:
    made = estimated(step=0.01, row=0.001, function=0.5)
    costing = made.stages["speak"].costing(line.stage("speak"))
    assert costing(Counts(decodes=2, prompts=1), 1, 4)[0] == pytest.approx(0.01 + 3 * 0.001 + 4 * 0.001)
    assert costing(Counts(), 0, 4) == (pytest.approx(0.004), 0.0)
    plain = evolve(made.stages["speak"], work=None).costing(line.stage("speak"))
    assert plain(Counts(prompts=3), 1, 0) == (1.5, 0.0)


def test_matrices_of_8_bits_are_read_in_half_of_the_time_and_leave_their_memory_to_the_cache(
    line: PipelineConfig, estimated: Estimated, decoder: DecoderWork
) -> None:
    costs, blocks, known = [], [], estimated().stages["speak"]
    for arguments in ({}, {"quantization": "float8_weight_only"}):
        stage = evolve(line.stage("speak"), factory_args=arguments)
        costs.append(known.costing(stage)(Counts(decodes=1), 1, 0)[1])
        blocks.append(known.kv_blocks(stage, 16) or 0)
    assert costs[1] == pytest.approx(0.5 * costs[0], rel=0.01)
    assert blocks[1] - blocks[0] == pytest.approx((decoder.shared + decoder.head) / (16 * 2 * (256 + 128)), rel=0.05)


def test_float32_is_computed_without_tensor_cores(line: PipelineConfig, estimated: Estimated, gpu: Accelerator) -> None:
    known = estimated().stages["encode"]
    known = evolve(known, device=evolve(known.device, accelerator=evolve(gpu, float32_flops=10e12)))
    stages = [evolve(line.stage("encode"), factory_args={"dtype": dtype}) for dtype in ("float32", "bfloat16")]
    wide, narrow = (known.costing(stage)(Counts(positions=100), 1, 0)[1] for stage in stages)
    assert wide == pytest.approx(10 * narrow)


def test_the_estimated_cache_is_what_the_budget_leaves(
    line: PipelineConfig, estimated: Estimated, gpu: Accelerator, decoder: DecoderWork
) -> None:
    known, arguments = estimated().stages["speak"], {"dtype": "bfloat16", "max_batch_tokens": 1, "max_running": 1}
    stage = evolve(line.stage("speak"), factory_args=arguments)
    left = 0.4 * gpu.memory - 2 * decoder.shared
    assert (known.kv_blocks(stage, 16) or 0) * 16 * 2 * (256 + 128) == pytest.approx(left, rel=0.05)
    for given, blocks in (({"kv_cache_mb": 3}, 3 * 2**20 // (16 * 2 * decoder.cached)), ({"kv_blocks": 7}, 7)):
        assert known.kv_blocks(evolve(stage, factory_args=given), 16) == blocks
    assert known.kv_blocks(evolve(stage, gpu_memory=None), 16) is None


def test_a_network_without_a_cache_may_pass_over_its_positions_several_times(
    line: PipelineConfig, works: PipelineWorks, gpu: Accelerator, rates: Rates
) -> None:
    """Ten passes of 1 ms over 100 positions, half of it attention; each is a message to the next stage if that wants them."""
    image = evolve(
        works,
        stages={"encode": PassWork(1000, 0.5e9, pair=5e6), "speak": PassWork(1000, 1e9)},
        visits=lambda ask: {"encode": StageWork(100, ask.steps), "speak": StageWork(10)},
    )
    asks = {"ten": Ask(steps=10), "one": Ask()}
    made = estimate(line, Device(gpu, rates), asks, image)
    for name, seconds in (("ten", 0.01), ("one", 0.001)):
        assert demands(made, line, {name: 1.0})["encode"] == pytest.approx(seconds, rel=0.01)
        figures = figures_of(simulate(line, made, Load({name: 1.0}, 20, rate=1.0)).flights, made)
        assert figures["done"].p50 == pytest.approx(seconds + 1e-4, rel=0.02)
    streamed = evolve(line, stages=[evolve(line.stage("encode"), stream_to=["speak"]), line.stage("speak")])
    assert estimate(streamed, Device(gpu, rates), asks, image).kinds["ten"][0]["encode"].chunks == {"speak": 10}


def test_a_stage_that_makes_sound_of_a_payload_streams_it(
    line: PipelineConfig, works: PipelineWorks, gpu: Accelerator, rates: Rates
) -> None:
    """1,000 frames of 10 ms in chunks of 300: four, as long as they are made in time; the first comes after a quarter of the work."""
    sounding = evolve(
        works,
        stages={"encode": PassWork(1000, 1e11), "speak": PassWork(1000, 1e10)},
        visits=lambda ask: {"encode": StageWork(10), "speak": StageWork(round(100 * ask.speech))},
        sounding={"speak": (0.01, 300)},
    )
    made = estimate(line, Device(gpu, rates), {"speech": Ask(speech=10.0)}, sounding)
    assert made.kinds["speech"][0]["speak"].chunks == {CLIENT: 4}
    outcome = simulate(line, made, Load({"speech": 1.0}, 3, rate=0.1))
    figures = figures_of(outcome.flights, made)
    assert figures["gap"].p95 == 0
    assert figures["ttfa"].p50 == pytest.approx(0.01 + 0.025, rel=0.1)
    assert figures["done"].p50 == pytest.approx(0.01 + 0.1, rel=0.1)
    assert sum(seconds for _, seconds in outcome.flights[0].sound) == pytest.approx(10.0)


def test_requests_of_many_sizes_have_a_tail(line: PipelineConfig, estimated: Estimated) -> None:
    tails = []
    for spread in (0.0, 0.7):
        made = estimated(spread=spread)
        figures = figures_of(simulate(line, made, Load({"text": 1.0}, 300, 5.0)).flights, made)
        tails.append(figures["done"].p95 / figures["done"].p50)
    assert tails[0] < 1.2 < 1.8 < tails[1]


def test_stages_of_a_gpu_that_no_placement_function_has_planned_get_budgets(
    line: PipelineConfig, estimated: Estimated
) -> None:
    """A gigabyte of weights and next to none, and an equal part of the rest for each; alone, a stage has its GPU."""
    bare = evolve(line, stages=[evolve(stage, gpu_memory=None) for stage in line.stages])

    def tried(settings: Any, gpus: int, memory: int) -> Trial | str:
        trials = Trials(bare, estimated(), Objectives.parse("done=1"), memory)
        return trials.of(settings, gpus, Load({"text": 1.0}, 20, rate=1.0))

    assert tried({}, 1, GIB) == (
        "stages without a gpu_memory (encode, speak) have 0.9 GiB of weights on GPU 0, which has 1.0 GiB; "
        "give one of them another GPU (--set STAGE.gpu=N), or take larger ones"
    )
    fits = tried({}, 1, 4 * GIB)
    assert isinstance(fits, Trial)
    budgets = {stage.name: int((stage.gpu_memory or "0MiB").removesuffix("MiB")) for stage in fits.config.stages}
    assert budgets["speak"] - budgets["encode"] == pytest.approx(1e9 / 2**20, abs=2)
    assert sum(budgets.values()) == pytest.approx(0.99 * 4096 - 800, abs=2)
    apart = tried({"speak.gpu": 1}, 2, 4 * GIB)
    assert isinstance(apart, Trial)
    assert {stage.gpu_memory for stage in apart.config.stages} == {None}
    assert isinstance(tried({"speak.gpu": 1}, 2, GIB), str)
    assert isinstance(tried({"speak.gpu": [1, 2], "speak.tp_size": 2}, 3, GIB), Trial)


def test_a_placement_in_which_one_request_does_not_fit_is_refused(line: PipelineConfig, estimated: Estimated) -> None:
    trials = Trials(line, estimated(spread=0.7), Objectives.parse("done=10"), 10 * GIB)
    found = [trials.of({"speak.factory_args.kv_blocks": each}, 1, Load({"text": 1.0}, 100, 5.0)) for each in (10, 1000)]
    assert isinstance(found[0], str)
    assert "positions does not fit" in found[0]
    assert isinstance(found[1], Trial)


def test_a_pipeline_says_its_work_beside_its_placement_function_or_the_one_that_fetches_it(
    line: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = PipelineWorks({}, dict)
    monkeypatch.setattr(
        "omni_planner.estimate.import_module", lambda name: type("m", (), {"works": lambda config: said})
    )
    assert works_of(evolve(line, fetch_fn="somewhere:fetch")) is said
    assert works_of(evolve(line, placement_fn="somewhere:place")) is said
    with pytest.raises(ConfigError, match="pipeline 'line' does not say what its stages compute"):
        works_of(line)


@pytest.mark.parametrize(("outputs", "figures"), [(["text"], {"ttft", "done"}), (["image"], {"done"})])
def test_a_pipeline_that_answers_in_no_text_has_no_first_text(
    line: PipelineConfig, estimated: Estimated, outputs: list[str], figures: set[str]
) -> None:
    flights = simulate(line, estimated(), Load({"text": 1.0}, 20, rate=1.0)).flights
    assert figures_of(flights, estimated(), Interface(outputs=outputs)).keys() == figures


def test_devices_as_they_are_written() -> None:
    two, many = Fleet.parse("2x80GiB"), Fleet.parse("300x8xh200")
    assert (two.hosts, two.gpus, two.accelerator.name) == (1, 2, "h100")
    assert (many.hosts, many.gpus, many.accelerator.memory) == (300, 8, 141 * GIB)
    assert Fleet.parse("4x22GiB").accelerator.memory == 22 * GIB
    for wrong, problem in (("80GiB", "write it like"), ("0x80GiB", "write it like"), ("2xh10", "did you mean 'h100'")):
        with pytest.raises(ConfigError, match=problem):
            Fleet.parse(wrong)


def test_rates_that_are_assumed() -> None:
    assert assumed("step=0.002", Rates()).step == 0.002
    assert assumed("spread=0", Rates()).spread == 0
    for wrong, problem in (("steps=1", "did you mean 'step'"), ("step=fast", "above 0"), ("step=0", "above 0")):
        with pytest.raises(ConfigError, match=problem):
            assumed(wrong, Rates())


def test_objectives_as_they_are_written() -> None:
    both = Objectives.parse("ttfa=0.5s, gap=0")
    assert (both.first, both.limits) == ("ttfa", {"ttfa": 0.5, "gap": 0.0})
    good, late = Quantiles(0.1, 0.4), Quantiles(0.0, 0.2)
    assert both.excess({"ttfa": good, "gap": Quantiles(0.0, 0.0)}) == 0
    assert both.excess({"ttfa": Quantiles(0.1, 1.0), "gap": late}) == pytest.approx(1.0 + 0.2)
    assert both.missed({"ttfa": good, "gap": late}) == ["gap"]
    for wrong, problem in (("tffa=1", "did you mean 'ttfa'"), ("ttfa", "number of seconds"), ("gap=-1", "at least 0")):
        with pytest.raises(ConfigError, match=problem):
            Objectives.parse(wrong)


def test_quantiles_are_between_the_nearest_two() -> None:
    assert Quantiles.of([3.0, 1.0, 2.0]) == Quantiles(2.0, pytest.approx(2.9))
    assert Quantiles.of([1.0]) == Quantiles(1.0, 1.0)


def test_requests_as_they_are_written() -> None:
    name, ask = ask_of("call:text=50,audio=3,speech=4.5")
    assert (name, ask.text, ask.audio, ask.speech) == ("call", 50, 3.0, 4.5)
    assert ask_of("speech:speech=2")[1].audio == 5.0, "what is not said is that of the kind"
    for wrong, problem in (("a:pixel=1", "did you mean 'pixels'"), ("a:text=much", "a number")):
        with pytest.raises(ConfigError, match=problem):
            ask_of(wrong)


def test_late_seconds_are_those_in_which_nothing_is_left_to_play() -> None:
    assert late_seconds([]) == 0.0
    assert late_seconds([(1.0, 0.5), (1.2, 0.5), (1.9, 0.5)]) == 0.0
    assert late_seconds([(1.0, 0.5), (1.7, 0.5), (3.0, 0.5)]) == pytest.approx(0.2 + 0.8)


@pytest.mark.parametrize("spread", [0.1, 0.7, 1.5])
def test_sizes_are_spread_around_their_mean(spread: float) -> None:
    ask = Ask(text=3000, pixels=1_000_000, audio=5.0, reply=600, speech=12.0)
    made = of_sizes(ask, spread, "speech")
    assert made == of_sizes(ask, spread, "speech")
    for name in ("text", "pixels", "audio", "reply", "speech"):
        sizes = [getattr(each, name) for each in made]
        assert statistics.fmean(sizes) == pytest.approx(getattr(ask, name), rel=0.01)
        # 64 quantiles lack the far tail.
        assert statistics.pstdev(sizes) / statistics.fmean(sizes) == pytest.approx(spread, rel=0.25)
    assert all(each.speech / each.reply == pytest.approx(12.0 / 600, rel=0.05) for each in made)
    assert statistics.correlation([each.text for each in made], [each.reply for each in made]) < 0.5
    nothing = of_sizes(Ask(text=0, audio=1.0), spread, "x")
    assert all(each.text == 0 and each.audio > 0 and not each.speech for each in nothing)
    assert of_sizes(ask, 0.0, "x") == [ask]
