"""Replayed steps equal called ones under arrivals and ends, and a GPU could record the recorded functions.

Without a GPU, the recorder that the engine is given calls the recorded function again, on the same tensors.
"""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from asking import EXPECTED, JOBS, PROMPTS, SAMPLINGS, feedback_alone, ids_together
from attention_stand_in import BLOCK, HEADS, KV_HEADS, LAYOUT, WIDTH, StandInWrapper, made, paged_attention
from eager_recorder import EagerRecorder
from engine_harness import Driven
from ghost import GhostRecorder, NoHostValues, decode, ghost_gpu
from tiers import few
from toy_model import POISON_TOKEN, FeedbackRunner, ToyModel, ToyRunner, generate

from omni_core.model_runner import ARRequest, ForwardBatch, ForwardOutput, ModelRunner, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage
from omni_torch.engine.attention import BACKENDS
from omni_torch.engine.attention.static import DecodeTables, StaticAttention
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.runners.graphs import Graphs, Named, padded

MODEL = ToyModel()
CPU = torch.device("cpu")
GREEDY = SamplingParams(max_new_tokens=30, suppressed_ids=frozenset({POISON_TOKEN}))


class PlainModel(ToyModel):
    """The toy model, whose forward ignores poison."""

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        assert batch.input_embeds is not None
        return ForwardOutput(self.run(batch.input_embeds, batch.positions, batch.attention))


def engine(runner: ModelRunner | None = None, **options: Any) -> EngineScheduler:
    options = {"max_context": 512, "kv_blocks": 200, "cuda_graphs": EagerRecorder, **options}
    return EngineScheduler(runner or ToyRunner(MODEL), **options)


@pytest.fixture
def driven(drive: Callable[[EngineScheduler], Driven]) -> Callable[..., Driven]:
    return lambda runner=None, **options: drive(engine(runner, **options))


def test_the_row_counts_of_graphs() -> None:
    assert [padded(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 24, 25, 33)] == [1, 2, 4, 4, 8, 8, 16, 24, 32, 40]


# --- answers ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_size": 1},
        {"chunk_size": 7, "max_batch_tokens": 16},
        {"block_size": 1},
        {"block_size": 5, "chunk_size": 3, "max_batch_tokens": 9},
        {"max_running": 3},
        {"kv_blocks": 7},
        {"kv_blocks": 25, "block_size": 4, "chunk_size": 8},
    ],
)
def test_replayed_results_equal_the_plain_loop(driven: Callable[..., Driven], options: dict[str, Any]) -> None:
    stage = driven(**options)
    assert ids_together(stage.scheduler, JOBS) == EXPECTED
    state = stage.statistics()
    assert 5 < state["graph_steps"] < state["steps"], "prompts are not replayed"
    assert stage.resting()


@pytest.mark.parametrize("seed", few(range(12), 4))
def test_random_arrivals_and_aborts(seed: int) -> None:
    """Arrivals, ends and aborts between any two steps, prompts with equal prefixes, and a cache that is too small for
    all.
    """
    chance = random.Random(seed)
    stage = engine(kv_blocks=chance.choice([28, 60]), block_size=4, chunk_size=chance.choice([4, 16]), max_running=11)
    beginning = [chance.randrange(90) for _ in range(20)]
    asked: dict[str, tuple[list[int], SamplingParams]] = {}
    aborted, finished = set(), {}
    with torch.inference_mode():
        while len(finished) + len(aborted) < 24:
            if len(asked) < 24 and chance.random() < 0.4:
                name = str(len(asked))
                own = [chance.randrange(90) for _ in range(chance.choice([1, 5, 30]))]
                sampling = SamplingParams(
                    max_new_tokens=chance.choice([1, 5, 20, 40]),
                    temperature=chance.choice([0.0, 1.0]),
                    seed=len(asked),
                    suppressed_ids=frozenset({POISON_TOKEN}),
                )
                asked[name] = (chance.choice([beginning, []]) + own, sampling)
                data = {"prompt": asked[name][0], "sampling": sampling}
                stage.inbox.put(IncomingMessage(name, "new_request", data, None, None, OmniRequest()))
            alive = sorted(asked.keys() - finished.keys() - aborted)
            if len(alive) > 2 and chance.random() < 0.03:
                aborted.add(alive[-1])
                stage.abort(alive[-1])
            if alive:
                assert stage.loop.turn()
            finished |= {m.request_id: m.data["ids"] for m in stage.outbox.drain() if m.type == "result"}
    assert stage.statistics()["graph_steps"] > 20
    assert finished.keys() | aborted == asked.keys()
    for name in finished.keys() - aborted:
        assert finished[name] == generate(MODEL, *asked[name]), name


def test_fed_back_inputs_are_replayed_and_survive_preemption(driven: Callable[..., Driven]) -> None:
    sampling = SamplingParams(max_new_tokens=20, temperature=0.7, seed=9)
    prompts = [[n, n + 1, n + 2] for n in range(6)]
    stage = driven(FeedbackRunner(MODEL), kv_blocks=12, block_size=4)
    expected = [feedback_alone(MODEL, prompt, sampling) for prompt in prompts]
    assert ids_together(stage.scheduler, [(prompt, sampling) for prompt in prompts]) == expected
    state = stage.statistics()
    assert state["preemptions"] > 0
    assert state["graph_steps"] > 0


def test_requests_longer_than_the_first_width(driven: Callable[..., Driven]) -> None:
    """Longer requests have wider graphs; a short one in the same batch gets the same result."""
    jobs = [([1 + n % 80 for n in range(250)], GREEDY), ([4, 8], GREEDY)]
    assert ids_together(driven(kv_blocks=40).scheduler, jobs) == [generate(MODEL, *job) for job in jobs]


@pytest.mark.parametrize("poison", ["emit", "result", "hook"])
def test_a_request_that_fails_in_a_replayed_step_fails_alone(driven: Callable[..., Driven], poison: str) -> None:
    class Choosy(ToyRunner):
        def after_sampling(self, batch: Any, output: Any, sampled: Any) -> None:
            if any(request.state.get("poison") == "hook" and len(request.output_ids) > 3 for request, _ in sampled):
                raise ArithmeticError("a hook of the model's")

    stage = driven(Choosy(MODEL))
    for index in range(5):
        stage.ask(str(index), PROMPTS[index], sampling=SAMPLINGS[index])
    stage.ask("bad", [1, 2], poison=poison, sampling=GREEDY)
    final = stage.collect(6)
    assert final["bad"].type == "error"
    assert [final[str(index)].data["ids"] for index in range(5)] == EXPECTED[:5]
    assert stage.statistics()["graph_steps"] > 0
    assert stage.resting()


# --- padding ---------------------------------------------------------------------------------------------------------
def test_padding_rows_write_no_block_and_read_no_scratch() -> None:
    """Five requests in a graph of eight rows: in the cache, five slots change, and the scratch, which is full of NaN."""
    stage = engine(max_running=5, block_size=4)
    prompts = [[3 + index] * (2 + 3 * index) for index in range(5)]
    for index, prompt in enumerate(prompts):
        data = {"prompt": prompt, "sampling": GREEDY}
        stage.inbox.put(IncomingMessage(str(index), "new_request", data, None, None, OmniRequest()))
    assert stage.loop.turn()
    cache = stage.cache
    for step in range(1, 12):
        for each in (*cache.keys, *cache.values):
            each[cache.scratch :] = float("nan") if step % 2 else 1e6
        before = [each.clone() for each in (*cache.keys, *cache.values)]
        assert stage.loop.turn()
        newest = [
            cache.slot_numbers(str(index), len(p) + step - 1, len(p) + step)[0] for index, p in enumerate(prompts)
        ]
        for old, new in zip(before, (*cache.keys, *cache.values), strict=True):
            changed = ((old != new) & ~(old.isnan() & new.isnan())).any(-1).any(-1).nonzero()[:, 0]
            assert set(changed.tolist()) == {*newest, *range(cache.scratch, cache.scratch + 3)}
    assert stage.statistics()["graph_steps"] == 11
    while len(stage._requests) > 0:
        assert stage.loop.turn()
    results = {m.request_id: m.data["ids"] for m in stage.outbox.drain() if m.type == "result"}
    assert [results[str(index)] for index in range(5)] == [generate(MODEL, prompt, GREEDY) for prompt in prompts]


def test_padding_rows_repeat_the_shortest_request() -> None:
    """The step reads their cache and their experts anyway."""
    steps: list[tuple[torch.Tensor, ...]] = []

    class Watched(PlainModel):
        def forward(self, batch: ForwardBatch) -> ForwardOutput:
            assert batch.input_embeds is not None
            if isinstance(batch.attention, StaticAttention):
                rows = slice(len(batch.input_embeds))
                tables = batch.attention.tables
                read = (batch.input_embeds, batch.positions, tables.lengths[rows], tables.pages[rows, :2])
                steps.append(tuple(each.clone() for each in read))
            return super().forward(batch)

    stage = engine(ToyRunner(Watched()), block_size=4)
    for index, prompt in enumerate([[7] * 5, [8] * 3, [9] * 6]):
        data = {"prompt": prompt, "sampling": GREEDY}
        stage.inbox.put(IncomingMessage(str(index), "new_request", data, None, None, OmniRequest()))
    for _ in range(4):
        assert stage.loop.turn()
    for each in steps[-3:]:
        for read in each:
            assert len(read) == 4
            assert torch.equal(read[3], read[1])
            assert not torch.equal(read[3], read[0])


def test_padding_rows_do_not_spread_nan(driven: Callable[..., Driven]) -> None:
    """The shortest request, which padding rows repeat, computes NaN."""

    class Forgiving(ToyRunner):
        def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
            return super().choose(logits.nan_to_num(), requests)

    model = ToyModel()
    model.table[90] = float("nan")
    stage = driven(Forgiving(model))
    stage.ask("bad", [90], sampling=GREEDY)
    for index in (1, 2, 3, 4):
        stage.ask(str(index), PROMPTS[index], sampling=SAMPLINGS[index])
    final = stage.collect(5)
    assert [final[str(index)].data["ids"] for index in (1, 2, 3, 4)] == [EXPECTED[index] for index in (1, 2, 3, 4)]


def test_the_memory_of_a_recorded_function_lives_as_long_as_its_graph() -> None:
    """A graph records addresses and keeps no memory alive."""

    class Memory:
        def __init__(self) -> None:
            self.rows = torch.ones(8, 1)

    class Address(EagerRecorder):
        def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
            return function(), lambda: None

    made: list[weakref.ref[Memory]] = []

    def build(rows: torch.Tensor) -> Callable[[], Named]:
        memory = Memory()
        made.append(weakref.ref(memory))
        return lambda: {"sum": rows + memory.rows[: len(rows)]}

    graphs = Graphs(CPU, Address)
    for count in (3, 1, 3):
        assert graphs.run("sum", build, [torch.ones(count, 1)]) is not None
    gc.collect()
    assert len(made) == 2
    assert all(memory() is not None for memory in made)


def test_results_of_a_step_survive_the_next_step(driven: Callable[..., Driven]) -> None:
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Keeping(ToyRunner):
        def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
            kept.append((output.hidden, output.hidden.clone()))

    stage = driven(Keeping(MODEL))
    stage.answer("r", [1, 2], sampling=GREEDY)
    assert len(kept) > 20
    assert all(torch.equal(seen, copied) for seen, copied in kept)


def test_a_replayed_step_keeps_rows_without_the_host() -> None:
    """The slots are those that the graph writes to, so that the host need not wait for its end to send them."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Keeping(ToyRunner):
        kept_width = MODEL.hidden_size

        def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
            assert batch.keep is not None
            slots = [stage.cache.slot_numbers(r.request_id, r.computed, r.length)[0] for r in batch.requests]
            if max(batch.lengths) > 1:
                batch.keep(output.hidden)
                return
            with NoHostValues():
                batch.keep(output.hidden)
            kept.append((stage.cache.kept[slots].clone(), output.hidden.clone()))

    stage = engine(Keeping(MODEL), block_size=4)
    for index in range(5):
        data = {"prompt": [3 + index] * (2 + 3 * index), "sampling": GREEDY}
        stage.inbox.put(IncomingMessage(str(index), "new_request", data, None, None, OmniRequest()))
    for _ in range(12):
        assert stage.loop.turn()
    assert stage.statistics()["graph_steps"] == len(kept) == 11
    assert all(len(rows) == 5 and torch.equal(rows, hidden) for rows, hidden in kept)


# --- attention -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(BACKENDS))
@pytest.mark.parametrize("seed", range(4))
def test_static_attention_follows_its_tables(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests grow, leave, come back under their old names and change rows; blocks are in random places, some shared."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    cache = KVCache(LAYOUT, 64, BLOCK, CPU, scratch=8)
    for each in (cache.keys[0], cache.values[0]):
        each.copy_(torch.randn(each.shape, generator=generator))
        each[cache.scratch :] = float("nan")
    backend = made(name, cache, monkeypatch)
    tables = DecodeTables(cache, 8, 12 * BLOCK)
    plans = {rows: backend.static_decode(backend, tables, rows, tables.width) for rows in (1, 2, 4, 8)}
    lengths: dict[str, int] = {}
    for _ in range(40):
        for each in [each for each in lengths if chance.random() < 0.1]:
            del lengths[each]
            cache.release(each)
        while not lengths or (len(lengths) < 7 and chance.random() < 0.5):
            each = chance.choice([str(n) for n in range(9) if str(n) not in lengths])
            lengths[each] = chance.randrange(1, 40)
            longest = max(lengths, key=lambda other: lengths[other] if other != each else 0)
            known = cache.blocks(longest)[: (lengths[each] - 1) // BLOCK] if longest != each else []
            assert cache.open(each, known, lengths[each])
        names = list(lengths)
        chance.shuffle(names)
        requests = [ARRequest(each, OmniRequest(), [1], SamplingParams()) for each in names]
        starts = [lengths[each] - 1 for each in names]
        plan, padding_row = plans[padded(len(names))], chance.randrange(len(names))
        tables.fill(requests, starts, plan.rows, padding_row)
        query = torch.randn(plan.rows, HEADS, WIDTH, generator=generator)
        key, value = torch.randn(2, plan.rows, KV_HEADS, WIDTH, generator=generator)
        plan.refill()
        plan.begin()
        output = plan(0, query, key, value, 0.3)
        for row, index in enumerate([*range(len(names)), *[padding_row] * (plan.rows - len(names))]):
            table = torch.tensor(cache.blocks(names[index])).unsqueeze(1)
            slots = (table * BLOCK + torch.arange(BLOCK)).reshape(-1)[: starts[index] + 1]
            expected = paged_attention(query[row : row + 1], cache.keys[0], cache.values[0], slots, 0.3)
            torch.testing.assert_close(output[row : row + 1], expected, rtol=1e-4, atol=1e-4)
            written = slots[-1] if row < len(names) else cache.scratch + row - len(names)
            assert torch.equal(cache.keys[0][written], key[row])
        for each in names:
            if lengths[each] < 12 * BLOCK - 1:
                lengths[each] += 1
                assert cache.reserve(each, lengths[each])


def test_layers_that_differ_share_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(LAYOUT, 8, BLOCK, CPU, scratch=1)
    backend = made("flashinfer", cache, monkeypatch)
    assert cache.reserve("r", 1)
    tables = DecodeTables(cache, 1, BLOCK)
    tables.fill([ARRequest("r", OmniRequest(), [1], SamplingParams())], [0], 1, 0)
    plan = backend.static_decode(backend, tables, 1, 1)
    query, key = torch.ones(1, HEADS, WIDTH), torch.ones(1, KV_HEADS, WIDTH)
    plan(0, query, key, key, 0.3)
    with pytest.raises(ValueError, match="one plan serves all layers"):
        plan(0, query, key, key, 0.4)


# --- what cannot be recorded -----------------------------------------------------------------------------------------
class Prying(PlainModel):
    """A model whose forward reads the requests' ids."""

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        assert len(batch.requests) <= len(batch.input_ids)
        return super().forward(batch)


class Clumsy(EagerRecorder):
    """Fails at the second recording."""

    recorded = 0

    def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
        Clumsy.recorded += 1
        if Clumsy.recorded == 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().record(function)


@pytest.mark.parametrize(
    ("model", "recorder", "word"),
    [(Prying(), EagerRecorder, "has no attribute 'requests'"), (MODEL, Clumsy, "not permitted")],
)
def test_one_failure_ends_recording_for_good_and_changes_no_answer(
    driven: Callable[..., Driven], model: ToyModel, recorder: Any, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    Clumsy.recorded = 0
    stage = driven(ToyRunner(model), cuda_graphs=recorder)
    with caplog.at_level(logging.WARNING):
        assert ids_together(stage.scheduler, JOBS) == EXPECTED
    (warning,) = caplog.messages
    assert word in warning
    assert Clumsy.recorded == (2 if recorder is Clumsy else 0)
    before = stage.statistics()["graph_steps"]
    stage.answer("later", [1, 2], sampling=GREEDY)
    assert stage.statistics()["graph_steps"] == before


def test_recording_does_not_depend_on_the_contents_of_a_request(driven: Callable[..., Driven]) -> None:
    """The very first decode is of a request that makes the model's forward raise."""
    stage = driven(cuda_graphs=EagerRecorder, prefix_cache=False)
    token = generate(MODEL, [3], SamplingParams(max_new_tokens=1))[0]
    table, MODEL.table = MODEL.table, MODEL.table.clone()
    stage.ask("bad", [3], sampling=SamplingParams(max_new_tokens=5, suppressed_ids=frozenset(range(96))))
    assert stage.collect(1)["bad"].type == "error"
    MODEL.table = table
    assert stage.answer("good", [3], sampling=GREEDY)["ids"][0] == token
    assert stage.statistics()["graph_steps"] > 0


def test_constants_of_a_hook_have_graphs_of_their_own_and_tensors_have_none() -> None:
    seen: list[dict[str, Any]] = []

    class Extra(PlainModel):
        def forward(self, batch: ForwardBatch) -> ForwardOutput:
            seen.append(dict(batch.extra))
            output = super().forward(batch)
            return ForwardOutput(output.hidden, {batch.extra["layer"]: output.hidden * batch.extra["layer"]})

    class Adding(ToyRunner):
        def before_forward(self, batch: ForwardBatch) -> None:
            count = len(batch.requests[0].output_ids)
            batch.extra = {"layer": 2 + count % 2, **({"rows": torch.ones(1)} if count > 5 else {})}

        def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
            (layer,) = output.captured
            assert layer == batch.extra["layer"]
            assert torch.equal(output.captured[layer], output.hidden * layer)

    stage = engine(Adding(Extra()))
    data = {"prompt": [1, 2], "sampling": SamplingParams(max_new_tokens=9)}
    stage.inbox.put(IncomingMessage("r", "new_request", data, None, None, OmniRequest()))
    while stage.statistics()["tokens"] < 9:
        assert stage.loop.turn()
    assert [message.data for message in stage.outbox.drain() if message.type == "error"] == []
    assert stage.statistics()["graph_steps"] == 5
    assert [sorted(each) for each in seen[-3:]] == [["layer", "rows"]] * 3


def test_without_a_gpu_nothing_is_recorded() -> None:
    stage = EngineScheduler(ToyRunner(MODEL), kv_blocks=4, max_context=64)
    assert stage._graphs is None
    assert Graphs.choose(CPU, True) is None
    assert len(stage.cache.keys[0]) == stage.cache.capacity


# --- what a GPU could record -----------------------------------------------------------------------------------------
def on(device: torch.device, model: ToyModel) -> ToyModel:
    model.table, model.head = model.table.to(device), model.head.to(device)
    model.layers = [tuple(each.to(device) for each in layer) for layer in model.layers]  # type: ignore[misc]
    return model


class Asking(PlainModel):
    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        output = super().forward(batch)
        return output if bool(output.hidden.isfinite().all()) else ForwardOutput(output.hidden.nan_to_num())


class Bringing(PlainModel):
    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        return ForwardOutput(super().forward(batch).hidden * torch.tensor([2.0], device=batch.input_ids.device))


class Listing(PlainModel):
    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        hidden = super().forward(batch).hidden
        return ForwardOutput(hidden[list(range(len(hidden)))])


class Selecting(PlainModel):
    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        hidden = super().forward(batch).hidden
        return ForwardOutput(hidden[(hidden > 0).any(-1)])


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_a_step_does_not_synchronise_with_the_host(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the libraries' own calls left out."""
    made(name, KVCache(LAYOUT, 1, BLOCK, CPU), monkeypatch)
    monkeypatch.setattr(StandInWrapper, "plan", lambda *_, **__: None)
    monkeypatch.setattr(StandInWrapper, "run", lambda wrapper, query, paged: torch.empty_like(query))
    output, graphs = decode(on(ghost_gpu(monkeypatch), PlainModel()), backend=BACKENDS[name])
    assert not graphs.failed, caplog.text
    assert output.hidden.shape == (3, 32)


@pytest.mark.parametrize("model", [PlainModel, ToyModel, Asking, Bringing, Listing, Selecting])
def test_the_fake_gpu_detects_functions_that_a_gpu_could_not_record(
    model: type[ToyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = ghost_gpu(monkeypatch)
    graphs, ghost = Graphs(device, GhostRecorder), on(device, model())

    def attention(layer: int, query: torch.Tensor, *_: Any) -> torch.Tensor:
        return query

    def build(row: torch.Tensor) -> Callable[[], Named]:
        batch = ForwardBatch([], [], [], row, ghost.table[row], row, attention, row, [])
        return lambda: {"hidden": ghost.forward(batch).hidden}

    answer = graphs.run("step", build, [torch.zeros(3, dtype=torch.int64, device=device)])
    assert (answer is None) == graphs.failed == (model is not PlainModel)


# --- on a GPU, where there is one ------------------------------------------------------------------------------------
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("options", [{}, {"kv_blocks": 7}], ids=str)
def test_a_gpu_answers_the_same_with_graphs(options: dict[str, Any], driven: Callable[..., Driven]) -> None:
    answers = []
    for recorded in (False, True):
        runner = ToyRunner(on(torch.device("cuda"), PlainModel()))
        runner.device = torch.device("cuda")
        stage = driven(runner, cuda_graphs=recorded, **options)
        answers.append(ids_together(stage.scheduler, JOBS, 50.0))
        assert (stage.statistics()["graph_steps"] > 5) == recorded
    assert answers[0] == answers[1]
