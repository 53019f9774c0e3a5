"""The search finds the placement that is known to be the best, and says what saturates in the others."""

from __future__ import annotations

import sys
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

sys.path.insert(0, str(Path(__file__).parent))

import planner_lines as lines

from omni_core.config.placement import process_groups
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError
from omni_core.interface import Interface
from omni_planner import ahead
from omni_planner import fleet as fleets
from omni_planner import search as searches
from omni_planner.devices import Accelerator, Fleet, Rates
from omni_planner.estimate import Device, EstimatedProfile, estimate, says_its_work
from omni_planner.fleet import ALONE, plan_fleet
from omni_planner.moves import moves
from omni_planner.objectives import Objectives
from omni_planner.optimize import _fleet_lines
from omni_planner.profile import CLIENT, Hardware, PipelineProfile, StageProfile, Visit
from omni_planner.search import SETTLED, Search, reason
from omni_planner.shapes import demands, shapes
from omni_planner.simulate import simulate, summarise
from omni_planner.steady import AROUND, COUNTED, LONGER_AROUND, grows
from omni_planner.trials import Load, Trial, attempt, changed
from omni_torch.placement.work import Ask, Counts, DecoderWork, PassWork, PipelineWorks, StageWork

GPU = Accelerator("test", 10 * 2**30, flops=100e12, float32_flops=100e12, bandwidth=1e12, link=100e9)
RATES = Rates(
    flops_share=1.0,
    bandwidth_share=1.0,
    kernel=1e-9,
    step=1e-6,
    row=1e-9,
    message=1e-6,
    latency=1e-6,
    function=1e-6,
    spread=0.0,
)
DECODER = DecoderWork(layers=2, hidden_size=64, shared=500_000_000, head=0, cached=256, heads=64, ranks=(1, 2, 4))
"""A step reads a gigabyte: 1 ms."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no trial be made by another process, where the tests cannot look."""
    monkeypatch.setattr(ahead, "WORTH", float("inf"))


def line(**changes: Any) -> PipelineConfig:
    stages = [
        StageConfig(
            name="encode", factory="omni_core.references:load", process="encode", next="speak", gpu=0, gpu_memory=0.1
        ),
        StageConfig(
            name="speak",
            factory="omni_core.references:load",
            process="speak",
            terminal=True,
            gpu=0,
            gpu_memory=0.4,
            **changes,
        ),
    ]
    return PipelineConfig(name="line", model_path="", stages=stages, max_in_flight=10_000)


def works() -> PipelineWorks:
    return PipelineWorks(
        stages={"encode": PassWork(1000, 1e9), "speak": DECODER},
        visits=lambda ask: {"encode": StageWork(ask.text), "speak": StageWork(ask.text, ask.reply)},
    )


def profile(reply: int = 100) -> EstimatedProfile:
    return estimate(line(), Device(GPU, RATES), {"text": Ask(text=10, reply=reply)}, works())


def test_a_step_takes_as_long_as_its_bytes_or_its_arithmetic() -> None:
    device = Device(GPU, RATES)
    assert device.seconds(DECODER.demand(Counts(decodes=1), 2)) == pytest.approx(1e-3, rel=0.01)
    assert device.seconds(DECODER.demand(Counts(positions=1000, prompts=1), 2)) == pytest.approx(1e-2, rel=0.01)
    exchanged = device.seconds(DECODER.demand(Counts(decodes=1), 2, 2)) - 0.5e-3
    assert exchanged == pytest.approx(4 * RATES.exchange, rel=0.1)


def test_matrices_of_8_bits_are_read_in_half_of_the_time_and_leave_their_memory_to_the_cache() -> None:
    device, narrow = Device(GPU, RATES), {"quantization": "float8_weight_only"}
    demands = [DECODER.demand(Counts(decodes=1, context=5000), 2, 1, stored) for stored in (2, 1)]
    cached = 2 * DECODER.cached * 5001
    assert demands[0].nbytes - cached == 2 * (demands[1].nbytes - cached)
    costs, blocks = [], []
    for arguments in ({}, narrow):
        stage = line(factory_args=arguments).stage("speak")
        measured = estimate(line(), device, {"text": Ask(text=10, reply=10)}, works()).stages["speak"]
        costs.append(measured.costing(stage)("decode", [1, 1, 1])[1])
        blocks.append(measured.settings(stage)["kv_blocks"])
    assert costs[1] == pytest.approx(0.5 * costs[0], rel=0.01)
    matrices = DECODER.shared + DECODER.head
    assert blocks[1] - blocks[0] == pytest.approx(matrices / (16 * 2 * (256 + 128)), rel=0.05)


def test_float32_is_computed_without_tensor_cores() -> None:
    device = Device(evolve(GPU, float32_flops=10e12), RATES)
    demand = PassWork(1000, 1e9).demand(Counts(positions=100), 4)
    assert device.seconds(demand, 4) == pytest.approx(10 * device.seconds(demand, 2))
    stage = line(factory_args={"dtype": "float32"}).stage("speak")
    costs = {}
    for name, made in (("float32", stage), ("bfloat16", evolve(stage, factory_args={"dtype": "bfloat16"}))):
        measured = estimate(line(), device, {"text": Ask(text=10, reply=10)}, works()).stages["encode"]
        costs[name] = measured.costing(made)("text", [1, 1, 0, 100])[1]
    assert costs["float32"] == pytest.approx(10 * costs["bfloat16"])


def test_a_network_without_a_cache_may_pass_over_its_positions_several_times() -> None:
    """Ten passes of 1 ms over 100 positions, half of it attention; each is a message to the next stage if that wants them."""
    work = PassWork(1000, 0.5e9, pair=5e6)
    image = evolve(
        works(),
        stages={"encode": work, "speak": PassWork(1000, 1e9)},
        visits=lambda ask: {"encode": StageWork(100, ask.steps), "speak": StageWork(10)},
    )
    asks = {"ten": Ask(steps=10), "one": Ask()}
    made = estimate(line(), Device(GPU, RATES), asks, image)
    stage = line().stage("encode")
    assert made.stages["encode"].costing(stage)("ten", [1, 1, 0, 100, 100**2, 10])[1] == pytest.approx(0.01)
    for name, seconds in (("ten", 0.01), ("one", 0.001)):
        assert demands(made, line(), {name: 1.0})["encode"] == pytest.approx(seconds, rel=0.01)
        outcome = simulate(line(), made, Load({name: 1.0}, 20, rate=1.0).arrivals(made))
        done = summarise(outcome).done
        assert done is not None
        assert done.p50 == pytest.approx(seconds + 1e-4, rel=0.02)
    streamed = evolve(line(), stages=[evolve(stage, stream_to=["speak"]), line().stage("speak")])
    assert estimate(streamed, Device(GPU, RATES), asks, image).kinds["ten"][0]["encode"].chunks == {"speak": 10}


def test_stages_of_a_gpu_that_no_placement_function_has_planned_get_budgets() -> None:
    """A gigabyte of weights and next to none, and an equal part of the rest for each; alone, a stage has its GPU."""
    bare = evolve(line(), stages=[evolve(stage, gpu_memory=None) for stage in line().stages])
    load, limits, gib = Load({"text": 1.0}, 20, rate=1.0), Objectives.parse("done=1"), 2**30

    def tried(settings: Any, *gpus: int) -> Trial | str:
        return attempt(bare, settings, profile(), load, limits, 1, gpus=gpus)

    small, fits = tried({}, gib), tried({}, 4 * gib)
    assert small == (
        "stages without a gpu_memory (encode, speak) have 0.9 GiB of weights on GPU 0, which has 1.0 GiB; "
        "give one of them another GPU (--set STAGE.gpu=N), or take larger ones"
    )
    assert isinstance(fits, Trial)
    budgets = {stage.name: int((stage.gpu_memory or "0MiB").removesuffix("MiB")) for stage in fits.config.stages}
    assert budgets["speak"] - budgets["encode"] == pytest.approx(1e9 / 2**20, abs=2)
    assert sum(budgets.values()) == pytest.approx(0.99 * 4096 - 800, abs=2)
    apart = tried({"speak.gpu": 1}, 4 * gib, 4 * gib)
    assert isinstance(apart, Trial)
    assert {stage.gpu_memory for stage in apart.config.stages} == {None}
    assert isinstance(tried({"speak.gpu": 1}, gib, gib), str)
    split = tried({"speak.gpu": [1, 2], "speak.tp_size": 2}, gib, gib, gib)
    assert isinstance(split, Trial)


def test_a_pipeline_without_a_placement_function_says_its_work_beside_the_one_that_fetches_it() -> None:
    assert says_its_work(evolve(line(), fetch_fn="omni_qwen3.memory:fetch"))
    assert not says_its_work(line())


def test_a_stage_that_makes_sound_of_a_payload_streams_it() -> None:
    """1,000 frames of 10 ms in chunks of 300: four, as long as they are made in time; the first comes after a quarter of the work."""
    sounding = evolve(
        works(),
        stages={"encode": PassWork(1000, 1e11), "speak": PassWork(1000, 1e10)},
        visits=lambda ask: {"encode": StageWork(10), "speak": StageWork(round(100 * ask.speech))},
        sounding={"speak": (0.01, 300)},
    )
    made = estimate(line(), Device(GPU, RATES), {"speech": Ask(speech=10.0)}, sounding)
    assert made.kinds["speech"][0]["speak"].chunks == {CLIENT: 4}
    load = Load({"speech": 1.0}, 3, rate=0.1)
    (found,) = Search(line(), made, load, Objectives.parse("ttfa=1,gap=0")).on_gpus(Fleet(1, 1, GPU))[:1]
    assert found.excess == 0
    assert found.figures["ttfa"].p50 == pytest.approx(0.01 + 0.025, rel=0.1)
    assert found.figures["done"].p50 == pytest.approx(0.01 + 0.1, rel=0.1)


def test_estimated_requests_of_many_sizes_have_a_tail() -> None:
    load = Load({"text": 1.0}, rate=5.0, total=300)
    done = {}
    for spread in (0.0, 0.7):
        made = estimate(line(), Device(GPU, evolve(RATES, spread=spread)), {"text": Ask(text=10, reply=100)}, works())
        outcome = simulate(line(), made, load.arrivals(made))
        done[spread] = summarise(outcome).done
    assert done[0.0] is not None
    assert done[0.7] is not None
    assert done[0.0].p95 < 1.2 * done[0.0].p50
    assert done[0.7].p95 > 1.8 * done[0.7].p50


@pytest.mark.parametrize(("outputs", "figures"), [(["text"], {"ttft", "done"}), (["image"], {"done"})])
def test_a_pipeline_that_answers_in_no_text_has_no_first_text(outputs: list[str], figures: set[str]) -> None:
    answering = evolve(line(), interface=Interface(outputs=outputs))
    trial = attempt(answering, {}, profile(), Load({"text": 1.0}, 20, rate=1.0), Objectives.parse("done=1"), 1)
    assert isinstance(trial, Trial)
    assert trial.figures.keys() == figures


def test_a_placement_in_which_one_request_does_not_fit_is_refused_and_the_others_are_tried() -> None:
    made = estimate(line(), Device(GPU, evolve(RATES, spread=0.7)), {"text": Ask(text=10, reply=100)}, works())
    limits = Objectives.parse("done=10")
    small, large = (
        attempt(
            line(), {"speak.factory_args.kv_blocks": blocks}, made, Load({"text": 1.0}, rate=5.0, total=100), limits, 1
        )
        for blocks in (10, 1000)
    )
    assert isinstance(small, str)
    assert "positions" in small
    assert isinstance(large, Trial)


def test_the_estimated_cache_is_what_the_budget_leaves() -> None:
    stage = line(factory_args={"dtype": "bfloat16", "max_batch_tokens": 1, "max_running": 1}).stage("speak")
    blocks = profile().stages["speak"].settings(stage)["kv_blocks"]
    left = 0.4 * GPU.memory - 2 * DECODER.shared
    assert blocks * 16 * 2 * (256 + 128) == pytest.approx(left, rel=0.05)
    stage.factory_args["kv_cache_mb"] = 3
    assert profile().stages["speak"].settings(stage) == {"kv_blocks": 3 * 2**20 // (16 * 2 * DECODER.cached)}


def test_shapes_are_ranked_by_the_busiest_gpu() -> None:
    ranked = shapes(profile(), line(), {"text": 1.0}, 10.0, 2)
    assert [each.work for each in ranked] == sorted(each.work for each in ranked)
    assert any("tp 2" in each.text for each in ranked)
    apart = next(each for each in ranked if each.text == "speak on 1; encode on 1")
    assert apart.settings["speak.gpu"] == 0
    assert apart.settings["encode.gpu"] == 1


def test_the_front_has_more_gpus_only_where_they_help() -> None:
    """One step of 1 ms for each of 100 tokens: 0.1 s alone, and half of it on two GPUs that share the weights."""
    load = Load({"text": 1.0}, 60, rate=2.0)
    search = Search(line(), profile(), load, Objectives.parse("done=0.2"))
    front = search.on_gpus(Fleet(1, 2, GPU))
    assert front[0].cost == 1
    assert front[0].excess == 0
    assert front[0].figures["done"].p95 == pytest.approx(0.12, abs=0.06)
    for before, after in pairwise(front):
        assert after.figures["done"].p95 < before.figures["done"].p95
    assert "speak" in reason(front[0])
    strict = Search(line(), profile(), load, Objectives.parse("done=0.01")).on_gpus(Fleet(1, 2, GPU))
    assert all(each.excess for each in strict)


def two_engines() -> tuple[PipelineConfig, EstimatedProfile]:
    """A request takes 100 steps of 1 ms in one engine and then in another."""
    speak = line().stage("speak")
    stages = [evolve(speak, name="think", process="think", next="speak", terminal=False), speak]
    config = evolve(line(), stages=stages)
    return config, estimate(config, Device(GPU, RATES), {"text": Ask(text=10, reply=100)}, engines_of())


def engines_of(decoder: DecoderWork = DECODER) -> PipelineWorks:
    names = ("think", "speak")
    return PipelineWorks(
        dict.fromkeys(names, decoder), lambda ask: {name: StageWork(ask.text, ask.reply) for name in names}
    )


def test_every_engine_may_have_ranks() -> None:
    config, estimated = two_engines()
    ranked = shapes(estimated, config, {"text": 1.0}, 1.0, 4)
    names = {each.text for each in ranked}
    assert {"think (tp 2) on 2; speak (tp 2) on 2", "think on 2; speak (tp 2) on 2", "think + speak on 4"} <= names
    both = next(each for each in ranked if each.text == "think (tp 2) on 2; speak (tp 2) on 2")
    assert {name: both.settings[f"{name}.tp_size"] for name in ("think", "speak")} == {"think": 2, "speak": 2}
    assert both.settings["speak.gpu"] == [2, 3]
    search = Search(config, estimated, Load({"text": 1.0}, 40, rate=1.0), Objectives.parse("done=0.12"))
    front = search.on_gpus(Fleet(1, 4, GPU))
    assert front[-1].excess == 0, "0.2 s alone, and 0.1 s if two ranks share each engine's weights"
    assert all(front[-1].config.stage(name).tp_size > 1 for name in ("think", "speak"))


def test_only_what_its_pipeline_says_has_ranks() -> None:
    """A pass has none; a decoder those that it says, in shapes and in changes of them."""
    ranked = shapes(profile(), line(), {"text": 1.0}, 10.0, 4)
    assert not [each.text for each in ranked if "encode (tp" in each.text]
    config, _ = two_engines()
    for allowed in ((1,), (1, 2)):
        works = engines_of(evolve(DECODER, ranks=allowed))
        made = estimate(config, Device(GPU, RATES), {"text": Ask(text=10, reply=100)}, works)
        search = Search(config, made, Load({"text": 1.0}, 20, rate=1.0), Objectives.parse("done=0.01"))
        search.on_gpus(Fleet(1, 4, GPU))
        assert {stage.tp_size for trial in search.trials for stage in trial.config.stages} == set(allowed)


def test_the_talker_of_qwen3_omni_has_no_ranks(tmp_path: Path) -> None:
    """Its runner takes none, so a plan with them could not start."""
    works_of = pytest.importorskip("omni_qwen3.works")
    tiny = pytest.importorskip("omni_qwen3.tiny_checkpoint")
    model = pytest.importorskip("omni_qwen3.config").read_config(tiny.write_tiny_checkpoint(tmp_path / "tiny"))
    stages = works_of.works_of(model, {"thinker", "talker_ar"}).stages
    assert stages["talker_ar"].ranks == (1,)
    assert stages["thinker"].ranks[:2] == (1, 2)


def test_a_fleet_has_as_many_cells_as_the_load_needs() -> None:
    """A conversation is 0.1 s of work and 0.9 s of pause. A step costs as much for many as for one, until it misses the objective."""
    load = Load({"text": 1.0}, 50, in_flight=80, pause=0.9)
    fleet = Fleet(50, 2, GPU)
    found = plan_fleet(line(), profile(), load, Objectives.parse("done=0.11"), fleet, spare=1)
    assert found.cells == found.hosts * (2 // found.cell.gpus)
    assert found.usual.excess == found.degraded.excess == 0
    assert (found.cells - 2 // found.cell.gpus) * found.cell.most >= 1 - 1e-9, "also after the loss of a host"
    without = plan_fleet(line(), profile(), load, Objectives.parse("done=0.11"), fleet, spare=0)
    assert without.hosts == found.hosts - 1
    assert without.usual is without.degraded is without.cell.trial
    assert without.cell.needed() == without.cells, "what is known is the part that it has in the plan"
    with pytest.raises(ConfigError, match=r"needs \d+ hosts, 1 of them spare; --devices has 1"):
        plan_fleet(line(), profile(), load, Objectives.parse("done=0.11"), Fleet(1, 2, GPU), spare=1)
    with pytest.raises(ConfigError, match="misses the objectives even with"):
        plan_fleet(line(), profile(), load, Objectives.parse("done=0.001"), fleet)


def test_a_load_that_no_cell_bears_is_named_as_it_was_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads become less until requests are alone: less would not help."""
    made = list[tuple[float, Trial | str]]()

    def noted(*arguments: Any, **options: Any) -> Trial | str:
        made.append((arguments[3].rate, attempt(*arguments, **options)))
        return made[-1][1]

    monkeypatch.setattr(ahead, "attempt", noted)
    with pytest.raises(ConfigError, match="misses the objectives even with") as raised:
        plan_fleet(
            line(), profile(), Load({"text": 1.0}, 20, rate=1e5), Objectives.parse("done=0.001"), Fleet(9, 1, GPU)
        )
    rate, last = made[-1]
    assert f"even with {rate:.2f} requests a second" in str(raised.value)
    assert isinstance(last, Trial)
    assert last.in_flight <= ALONE
    assert len(made) < 12


def test_queues_that_grow_are_not_called_missed_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    def overloaded(*arguments: Any, **options: Any) -> Trial | str:
        made = attempt(*arguments, **options)
        return made if isinstance(made, str) else evolve(made, kept_up=0.1)

    monkeypatch.setattr(ahead, "attempt", overloaded)
    with pytest.raises(ConfigError, match="bears the load; loosen --slo, or give hosts") as raised:
        plan_fleet(line(), profile(), Load({"text": 1.0}, 20, rate=10.0), Objectives.parse("done=9"), Fleet(9, 1, GPU))
    assert "meets the objectives, but its queues grow, even with" in str(raised.value)


@pytest.mark.parametrize(
    "load", [Load({"text": 1.0}, 20, in_flight=200_000, pause=0.9), Load({"text": 1.0}, 20, rate=200_000.0)]
)
def test_cells_that_bear_much_are_simulated_with_few_requests_of_the_steady_load(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder takes 0.2 ms for a request, so a cell bears no more than 5,000 a second, which its engine computes together."""
    made = list[tuple[Load, Trial | str]]()

    def noted(*arguments: Any, **options: Any) -> Trial | str:
        made.append((arguments[3], attempt(*arguments, **options)))
        return made[-1][1]

    monkeypatch.setattr(ahead, "attempt", noted)
    found = plan_fleet(line(), profile(1), load, Objectives.parse("done=0.5"), Fleet(5000, 1, GPU))
    assert found.usual.excess == found.degraded.excess == 0
    assert max(part.total + 2 * part.around for part, _ in made) <= COUNTED[1] + 2 * AROUND
    assert len(made) <= 14
    assert 3500 < 200_000 * found.cell.most / (0.9 if load.pause else 1.0) < 5000
    for part, trial in made:
        assert isinstance(trial, Trial)
        if not grows(trial):
            assert trial.per_second == pytest.approx(part.rate or (part.in_flight or 0) / 0.9, rel=0.1)


@pytest.mark.parametrize(("limit", "above"), [(0.5, 1.026), (0.5, 1.2), (60.0, 1.1), (60.0, 3.0)])
def test_a_load_above_the_capacity_is_refused_however_loose_the_objectives_are(limit: float, above: float) -> None:
    """Of 5,000 requests a second of 0.2 ms each, those that come on top wait: after a minute, for more than a second."""
    fleet, limits = Fleet(1, 1, GPU), Objectives({"done": limit})
    load, here = Load({"text": 1.0}, 20, rate=5000.0 * above), ahead.Ahead(profile(1), limits, processes=1)
    cells = fleets._Cells(line(), profile(1), load, limits, fleet, 0, here)
    found = cells.best(1, [])
    assert isinstance(found, fleets.Cell)
    while not found.is_settled:
        cells.found[1] = found
        found = cells.settled(found, [])
        assert isinstance(found, fleets.Cell)
    assert 4000 < 5000 * above * found.most <= 5000
    short = here.trial(cells._attempt(1, found.shape.settings, 1.0))
    assert isinstance(short, Trial)
    judged = cells._judged(1, found.shape.settings, 1.0, short)
    assert isinstance(judged, tuple)
    assert judged[1], "the longer simulation refuses it, whatever the short one says"


def test_many_requests_in_flight_are_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages take a second, so 2,000 requests are on their way; those in flight become more in a simulation with fewer before."""
    made = list[Trial | str]()

    def noted(*arguments: Any, **options: Any) -> Trial | str:
        made.append(attempt(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(ahead, "attempt", noted)
    slow = estimate(line(), Device(GPU, evolve(RATES, latency=0.5)), {"text": Ask(text=10, reply=1)}, works())
    found = plan_fleet(line(), slow, Load({"text": 1.0}, 20, rate=1000.0), Objectives.parse("done=9"), Fleet(9, 1, GPU))
    assert found.cell.needed() == 1
    unfilled = [trial for trial in made if isinstance(trial, Trial) and trial.coming > trial.around]
    assert unfilled, "it was simulated with too few before it"
    assert grows(unfilled[0])
    assert found.cell.trial.in_flight == pytest.approx(1500, rel=0.1)
    assert not grows(found.cell.trial)


def test_so_many_requests_come_before_those_that_count_as_come_while_one_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And twice as many may be in flight, whatever the config says: a cell of many GPUs is not what it was made for."""
    made = list[tuple[PipelineConfig, Load, Trial]]()

    def noted(*arguments: Any, **options: Any) -> Trial | str:
        trial = attempt(*arguments, **options)
        assert isinstance(trial, Trial)
        made.append((arguments[0], arguments[3], trial))
        return trial

    monkeypatch.setattr(ahead, "attempt", noted)
    few, load = evolve(line(), max_in_flight=1), Load({"text": 1.0}, 20, rate=500.0)
    found = plan_fleet(few, profile(), load, Objectives.parse("done=0.11"), Fleet(9, 1, GPU))
    assert found.usual.refused == 0
    *searched, (config, part, longer), (_, usual, _) = made
    lasting, best = fleets.LASTING, searched[0][1:]
    for number, (limited, short, trial) in enumerate(searched):
        coming = ceil((short.rate or 0.0) * lasting)
        assert short.around == min(AROUND, coming)
        assert limited.max_in_flight == 2 * coming
        if not number:
            lasting = 0.0  # the first says how long requests last, whether it meets the objectives or not
        if not number or not trial.excess:
            done = trial.figures["done"].p95
            lasting = max(lasting, fleets._rounded(done))
            assert done <= fleets._rounded(done) < 1.25 * done
        if not trial.excess and (short.rate or 0.0) > (best[0].rate or 0.0) * (not best[1].excess):
            best = short, trial
    assert len({short.rate for _, short, _ in searched}) == len(searched) > 3
    assert sum(not trial.excess for _, _, trial in searched[1:]) > 1
    assert part.around == min(LONGER_AROUND, ceil(best[1].coming)) == ceil(best[1].coming)
    assert part.total > best[0].total
    assert config.max_in_flight >= 2 * ceil(best[1].coming)
    assert found.degraded is longer
    assert (part.rate, usual.rate) == (500 / (found.hosts - 1), 500 / found.hosts)
    assert usual.around == ceil((usual.rate or 0.0) * fleets._rounded(best[1].figures["done"].p95))
    assert best[1].figures["done"].p95 < 0.12


def test_how_long_requests_last_is_learned_anew_for_a_size_without_a_smaller_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[Load]()

    def noted(*arguments: Any, **options: Any) -> Trial | str:
        made.append(arguments[3])
        return attempt(*arguments, **options)

    monkeypatch.setattr(ahead, "attempt", noted)
    limits = Objectives.parse("done=0.11")
    here = ahead.Ahead(profile(), limits, processes=1)
    cells = fleets._Cells(line(), profile(), Load({"text": 1.0}, 20, rate=50.0), limits, Fleet(9, 1, GPU), 0, here)
    for _ in range(2):
        made.clear()
        cells.best(1, [])
        assert made[0].around == min(AROUND, ceil((made[0].rate or 0.0) * fleets.LASTING))
        assert cells.lasting < 1.0


def test_a_cell_does_not_bear_messages_that_come_faster_than_they_are_handled() -> None:
    """The client's thread handles two messages of 10 ms for a request: 50 a second, on however many GPUs. No objective is missed."""
    made = estimate(line(), Device(GPU, evolve(RATES, message=0.01)), {"text": Ask(text=10, reply=1)}, works())
    load = Load({"text": 1.0}, 50, rate=400.0)
    found = plan_fleet(line(), made, load, Objectives.parse("done=1000"), Fleet(50, 2, GPU), spare=1)
    assert found.usual.excess == 0
    assert 8 <= found.cells_tried[1].needed() <= 12
    assert found.cell.gpus == 1
    assert found.worse[2].shape == "speak + encode on 2"
    assert "so more hosts would be needed; saturates: messages " in found.worse[2].text
    assert any(
        "cells of 2 GPUs (speak + encode on 2): each bears less" in text for text in _fleet_lines(found, Objectives({}))
    )


@pytest.mark.parametrize(("rates", "together"), [({"message": 0.02}, True), ({"step": 2e-3}, False)])
def test_stages_of_a_gpu_share_a_process_where_messages_cost_more_than_pythons_lock(
    rates: dict[str, float], together: bool
) -> None:
    """A request has a message between the engines, and 200 steps, whose Python takes as long as their kernels or nothing."""
    config, _ = two_engines()
    config = evolve(config, stages=[evolve(stage, gpu_memory=0.4) for stage in config.stages])
    made = estimate(config, Device(GPU, evolve(RATES, **rates)), {"text": Ask(text=10, reply=100)}, engines_of())
    search = Search(config, made, Load({"text": 1.0}, 60, rate=0.5), Objectives.parse("done=0.1"))
    search.on_gpus(Fleet(1, 1, GPU))
    best = min(search.trials, key=lambda trial: trial.figures["done"].p95)
    shared = {len(stages) for stages in process_groups(best.config).values()} == {2}
    assert shared == together
    tried = [len(process_groups(trial.config)) for trial in search.trials]
    assert sorted(tried) == [1, 2], "each was tried once"
    both = next(trial for trial in search.trials if len(process_groups(trial.config)) == 1)
    assert both.shares["messages of think"] < 0.05, "Python of the steps is no message"


def test_vocoders_have_pieces_that_grow_or_not_and_deadlines_are_tried_for_all_stages_at_once(tmp_path: Path) -> None:
    pytest.importorskip("omni_qwen3")
    made = Trial({}, PipelineConfig(name="p", model_path="", stages=[
        StageConfig(name="talker", model_runner="talker", scheduler="engine", process="talker", next="vocoder"),
        StageConfig(name="other", model_runner="talker", scheduler="sglang", process="other", next="vocoder"),
        StageConfig(name="vocoder", factory="omni_qwen3.code2wav:create_code2wav", process="vocoder", terminal=True),
    ]), 1, {}, 0.0, 1.0, 0.0, {})  # fmt: skip
    measured = PipelineProfile("p", Hardware("test", 4))
    measured.stages = {
        "talker": StageProfile("engine"),
        "other": StageProfile("engine"),
        "vocoder": StageProfile("vocoder"),
    }
    found = list(moves(made, measured))
    assert {"vocoder.factory_args.growth": None} in found
    deadlines = {
        f"{name}.factory_args.policy": "omni_torch.vocoder.deadlines:Deadlines" for name in ("talker", "vocoder")
    }
    assert deadlines in found
    there = evolve(made, config=changed(made.config, {**deadlines, "vocoder.factory_args.growth": None}))
    back = list(moves(there, measured))
    assert {"vocoder.factory_args.growth": 1.0} in back
    assert dict.fromkeys(deadlines) in back


def test_changes_on_few_gpus_leave_trials_for_more() -> None:
    """One engine after the other, 0.2 s: half of that needs two GPUs of two ranks, whatever one GPU is tried with before."""
    config, made = two_engines()
    search = Search(config, made, Load({"text": 1.0}, 20, rate=1.0), Objectives.parse("done=0.12"), budget=9)
    search.on_gpus(Fleet(1, 4, GPU))
    tried = [trial.cost for trial in search.trials]
    assert max(tried) == 4, tried


def test_conversations_on_one_host_are_simulated_as_busy_as_they_are_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes longer the more requests it has; those of the first second find few others. The budget is of requests."""
    made = estimate(line(), Device(GPU, evolve(RATES, row=5e-5)), {"text": Ask(text=10, reply=300)}, works())
    load = Load({"text": 1.0}, 40, in_flight=150, pause=2.0)
    simulated = list[Load]()

    def noted(*arguments: Any, **options: Any) -> Trial | str:
        simulated.append(arguments[3])
        return attempt(*arguments, **options)

    monkeypatch.setattr(ahead, "attempt", noted)
    search = Search(line(), made, load, Objectives.parse("done=0.01"), budget=8)
    search.on_gpus(Fleet(1, 2, GPU))
    found = search.trials[0].figures["done"]
    steady = attempt(line(), search.trials[0].settings, made, evolve(load, total=1000), search.objectives, 2)
    start = attempt(line(), search.trials[0].settings, made, load, search.objectives, 2)
    assert isinstance(steady, Trial)
    assert isinstance(start, Trial)
    assert start.figures["done"].p95 < 0.75 * steady.figures["done"].p95
    assert found.p95 == pytest.approx(steady.figures["done"].p95, rel=0.1)
    assert {each.around for each in simulated[1:]} == {search.trials[0].around}, "chance is the same for all"
    assert 3 <= len(search.trials) < 8
    assert sum(each.total + 2 * each.around for each in simulated[2:]) <= 8 * load.total


def test_a_rate_on_one_host_is_simulated_as_it_is_for_long() -> None:
    """Messages take half a second, so 150 requests are always under way; of 200 from the start many find fewer."""
    made = estimate(line(), Device(GPU, evolve(RATES, latency=0.5)), {"text": Ask(text=10, reply=1)}, works())
    load = Load({"text": 1.0}, 200, rate=100.0)
    search = Search(line(), made, load, Objectives.parse("done=0.01"), budget=8)
    search.on_gpus(Fleet(1, 2, GPU))
    start = attempt(line(), search.trials[0].settings, made, load, search.objectives, 2)
    assert isinstance(start, Trial)
    assert start.in_flight < 120
    assert {each.around for each in search.trials} == {search.trials[0].around}, "chance is the same for all"
    assert search.trials[0].around >= 100
    assert search.trials[0].in_flight == pytest.approx(150, rel=0.1)


def test_a_closed_loop_runs_on_few_gpus_too() -> None:
    """Eight requests at once of 100 steps of 1 ms, which are computed together: one GPU is enough, however busy."""
    load, limits = Load({"text": 1.0}, 200, in_flight=8), Objectives.parse("done=0.2")
    search = Search(line(), profile(), load, limits, budget=8)
    found = search.on_gpus(Fleet(1, 4, GPU))
    assert found[0].cost == 1
    assert found[0].excess == 0
    assert found[0].per_second == pytest.approx(8 / 0.1, rel=0.1)


def test_those_of_a_closed_loop_that_begin_together_do_not_count() -> None:
    """However many they are: a thousand at once take longer than those that find an empty pipeline."""
    load, limits = Load({"text": 1.0}, 150, in_flight=1000), Objectives.parse("done=9")
    search = Search(line(), profile(20), load, limits, budget=8)
    (found, *_) = search.on_gpus(Fleet(1, 2, GPU))
    steady = attempt(line(), found.settings, profile(20), evolve(load, total=3000, around=2000), limits, found.cost)
    assert isinstance(steady, Trial)
    assert found.figures["done"].p95 == pytest.approx(steady.figures["done"].p95, rel=0.1)
    assert found.in_flight == pytest.approx(1000, rel=0.1)


def test_a_shape_that_cannot_be_simulated_for_longer_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many requests one may not fit that few have not."""
    refused = set[str]()

    def rare(*arguments: Any, **options: Any) -> Trial | str:
        if arguments[3].total <= COUNTED[1]:
            return attempt(*arguments, **options)
        refused.add(str(arguments[1]))
        return "a rare request does not fit" if len(refused) == 1 else attempt(*arguments, **options)

    monkeypatch.setattr(ahead, "attempt", rare)
    load = Load({"text": 1.0}, 20, rate=60.0)
    found = plan_fleet(line(), profile(), load, Objectives.parse("done=0.2"), Fleet(50, 2, GPU))
    assert len(refused) > 1
    assert list(found.cells_tried) == sorted(found.cells_tried)
    assert found.cell.is_settled


def test_a_placement_that_a_request_of_a_longer_simulation_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = list[dict[str, Any]]()

    def rare(*arguments: Any, **options: Any) -> Trial | str:
        if arguments[3].total <= 40 or len(refused) == 1:
            return attempt(*arguments, **options)
        refused.append(arguments[1])
        return "a rare request does not fit"

    monkeypatch.setattr(ahead, "attempt", rare)
    search = Search(line(), profile(), Load({"text": 1.0}, 40, rate=20.0), Objectives.parse("done=0.2"), budget=20)
    front = search.on_gpus(Fleet(1, 2, GPU))
    assert len(refused) == 1
    assert "a rare request does not fit" in search.refusals.values()
    assert front
    assert all(each.settings != refused[0] for each in front)


def test_a_closed_loop_on_processors_is_simulated_as_it_is_for_long() -> None:
    """Four requests of two functions of 50 ms: at the end fewer are under way, which count only without others after them."""
    measured, load = lines.profile("a", "b", seconds=0.05, cores=2), Load({"text": 1.0}, 100, in_flight=4)
    search = Search(lines.pipeline("a", "b"), measured, load, Objectives.parse("done=0.01"), budget=1)
    search.on_cores(1)
    start = attempt(search.config, {}, measured, load, search.objectives, 1, cores=1)
    assert isinstance(start, Trial)
    assert start.in_flight < 3.95
    assert search.trials[0].around == 4
    assert search.trials[0].in_flight == pytest.approx(4)


@pytest.mark.parametrize("grows", [False, True])
def test_a_placement_for_conversations_meets_the_objectives_in_a_longer_simulation_too(
    grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[tuple[int, int]]()

    def noted(*arguments: Any, **options: Any) -> Trial | str:
        trial = attempt(*arguments, **options)
        assert isinstance(trial, Trial)
        made.append((trial.cost, trial.counted))
        return evolve(trial, excess=0.5) if grows and trial.cost == 1 and trial.counted > 20 else trial

    monkeypatch.setattr(ahead, "attempt", noted)
    load = Load({"text": 1.0}, 20, in_flight=20, pause=2.0)
    search = Search(line(), profile(), load, Objectives.parse("done=0.5"), budget=20)
    front = search.on_gpus(Fleet(1, 2, GPU))
    assert min(each.cost for each in front if not each.excess) == (2 if grows else 1)
    longer_ones = [cost for cost, counted in made if counted > 20]
    assert 1 < longer_ones.count(1) <= SETTLED if grows else longer_ones.count(1) == 1
    assert longer_ones.count(2) == 1
    assert all(each.counted > 20 for each in front)


def test_a_process_that_mostly_sends_and_receives_saturates_by_its_messages() -> None:
    """Each of the two takes a message of 10 ms in and sends one, 20 times a second; its turns are short."""
    made = estimate(line(), Device(GPU, evolve(RATES, message=0.01)), {"text": Ask(text=10, reply=1)}, works())
    trial = attempt(line(), {}, made, Load({"text": 1.0}, 400, rate=20.0), Objectives.parse("done=1"), 1)
    assert isinstance(trial, Trial)
    assert trial.shares["messages of speak"] == pytest.approx(0.4, rel=0.1)
    assert trial.shares["messages of encode"] == pytest.approx(0.4, rel=0.1)
    assert trial.shares["encode"] < 0.1
    ranks = {"speak.gpu": [0, 1], "speak.tp_size": 2, "speak.replicas": 1}
    split = attempt(line(), ranks, made, Load({"text": 1.0}, 40, rate=2.0), Objectives.parse("done=1"), 2)
    assert isinstance(split, Trial)
    assert {name for name in split.shares if "messages of" in name} == {"messages of encode", "messages of speak"}
    functions = [evolve(stage, gpu=None, gpu_memory=None) for stage in line().stages]
    busy = evolve(trial, config=evolve(line(), stages=functions), shares={"encode": 0.5, "messages of speak": 0.9})
    measured = PipelineProfile("line", Hardware("test", 4))
    measured.stages = dict.fromkeys(("encode", "speak"), StageProfile("function"))
    assert next(moves(busy, measured)) == {"speak.replicas": 2, "speak.balance": "least_busy"}


def test_a_search_leaves_alone_what_a_stage_cannot_have_and_what_somebody_chose() -> None:
    def policies(**arguments: Any) -> list[dict[str, Any]]:
        stages = [
            StageConfig(name="talker", model_runner="t", scheduler="engine", process="talker", factory_args=arguments),
            StageConfig(name="other", model_runner="t", scheduler="engine", process="other", terminal=True),
        ]
        config = PipelineConfig(name="p", model_path="", stages=stages)
        measured = PipelineProfile("p", Hardware("test", 4))
        measured.stages = dict.fromkeys(("talker", "other"), StageProfile("engine"))
        found = moves(Trial({}, config, 1, {}, 0.0, 1.0, 0.0, {}), measured)
        return [change for change in found if any("policy" in path for path in change)]

    deadlines = "omni_torch.vocoder.deadlines:Deadlines"
    both = {f"{name}.factory_args.policy": deadlines for name in ("talker", "other")}
    assert policies() == [both]
    assert policies(policy=deadlines) == [both], "of one stage only: then all"
    assert policies(patience=32) == policies(policy="mine:P") == [{"other.factory_args.policy": deadlines}]


def test_stages_with_ranks_and_those_without_a_gpu_keep_their_processes_where_there_are_gpus() -> None:
    speak = evolve(line().stage("speak"), gpu=[0, 1], tp_size=2, gpu_memory=None)
    stages = [
        *(
            evolve(speak, name=name, process=name, terminal=False, next=after)
            for name, after in (("a", "b"), ("b", "c"))
        ),
        *(StageConfig(name=name, factory="omni_core.references:load", process=name, terminal=True) for name in "cd"),
    ]
    measured = PipelineProfile("p", Hardware("test", 4))
    measured.stages = dict.fromkeys("abcd", StageProfile("function"))
    trial = Trial({}, PipelineConfig(name="p", model_path="", stages=stages), 2, {}, 0.0, 1.0, 0.0, {})
    changes = [change for change in moves(trial, measured) if any(path.endswith(".process") for path in change)]
    assert changes == []
    alone = evolve(trial, config=evolve(trial.config, stages=stages[2:]))
    assert {"c.process": "c", "d.process": "c"} in list(moves(alone, measured))


def test_a_setting_that_says_the_default_is_no_other_placement() -> None:
    config, made = two_engines()
    search = Search(config, made, Load({"text": 1.0}, 5, rate=1.0), Objectives.parse("done=1"))
    place = searches._Place(1, [GPU.memory])
    for settings in ({}, {"think.process": "think"}, {"think.factory_args.policy": None}):
        search._try(settings, place)
    for names in (("max_running", "max_batch_tokens"), ("max_batch_tokens", "max_running")):
        search._try({f"think.factory_args.{name}": 64 for name in names}, place)
    assert len(search.trials) == 2


def test_on_processors_the_busiest_stage_is_replicated() -> None:
    """The second of two functions takes 50 ms: 30 requests a second need two of it, on two processors."""
    config = evolve(line(), stages=[evolve(each, gpu=None, gpu_memory=None) for each in line().stages])
    measured = PipelineProfile("line", Hardware("test", 4))
    for name, seconds in (("encode", 0.001), ("speak", 0.05)):
        measured.stages[name] = StageProfile("function")
        measured.stages[name].cost("text").observe({"turns": 1.0, "requests": 1.0}, seconds)
    measured.kinds["text"] = [{"encode": Visit([CLIENT], ["speak"]), "speak": Visit(["encode"], [CLIENT])}]
    search = Search(config, measured, Load({"text": 1.0}, 200, rate=30.0), Objectives.parse("done=0.3"), budget=40)
    front = search.on_cores(3)
    best = next(each for each in front if not each.excess)
    assert best.cost == 2, "one processor cannot keep up, a third is not needed"
    assert best.config.stage("speak").replicas >= 2
    assert best.config.stage("speak").balance == "least_busy"
    alone = next(each for each in search.trials if not each.settings)
    assert alone.saturated == "speak"
    assert "saturates: speak" in reason(alone)
