"""The engine equals a plain loop, whatever it batches, chunks, preempts or aborts, and isolates failures."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import toy_model
from asking import (
    EXPECTED,
    JOBS,
    MODEL,
    PROMPTS,
    SAMPLINGS,
    ask,
    collect,
    feedback_alone,
    ids_together,
    resting,
)
from engine_harness import Driven
from tiers import few
from toy_model import FeedbackRunner, ToyModel, ToyRunner, generate

from omni_core.errors import ConfigError
from omni_core.model_runner import ARRequest, ForwardBatch, ForwardOutput, KVLayout, ModelRunner, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.specs import StageSpec
from omni_core.scheduling.base import IncomingMessage
from omni_core.stage.assembly import build_scheduler
from omni_torch.engine.attention import PagedAttention
from omni_torch.engine.batching import Batcher
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.scheduler import EngineScheduler

Open = Callable[..., EngineScheduler]


@pytest.fixture
def engine(drive: Callable[[EngineScheduler], Driven]) -> Open:
    def start(runner: ModelRunner | None = None, **options: Any) -> EngineScheduler:
        options = {"max_context": 512, "kv_blocks": 200, **options}
        return drive(EngineScheduler(runner or ToyRunner(MODEL), **options)).scheduler

    return start


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_one_request_equals_the_plain_loop(engine: Open, index: int) -> None:
    scheduler = engine()
    ask(scheduler, "r", PROMPTS[index], sampling=SAMPLINGS[index])
    answer = collect(scheduler, 1)["r"].data
    assert answer["ids"] == EXPECTED[index]
    stopped = EXPECTED[index][-1] in SAMPLINGS[index].stop_ids
    assert answer["reason"] == ("stop" if stopped else "length")
    assert resting(scheduler)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_size": 1},
        {"chunk_size": 7, "max_batch_tokens": 16},
        {"block_size": 1},
        {"block_size": 5, "chunk_size": 3, "max_batch_tokens": 9},
        {"max_running": 2},
        {"kv_blocks": 7},
        {"kv_blocks": 25, "block_size": 4, "chunk_size": 8},
    ],
)
def test_a_mixed_batch_equals_single_requests(engine: Open, options: dict[str, Any]) -> None:
    scheduler = engine(**options)
    assert ids_together(scheduler, JOBS) == EXPECTED
    assert resting(scheduler)


def test_a_full_cache_preempts_and_the_output_stays(engine: Open) -> None:
    scheduler = engine(kv_blocks=12, block_size=4)
    jobs = [([n, n + 1, n + 2], SamplingParams(max_new_tokens=20, temperature=0.7, seed=9)) for n in range(6)]
    assert ids_together(scheduler, jobs) == [generate(MODEL, *job) for job in jobs]
    assert scheduler.statistics()["preemptions"] > 0
    assert resting(scheduler)


def test_streamed_tokens_are_the_result(engine: Open) -> None:
    scheduler = engine()
    ask(scheduler, "r", [1, 2], sampling=SamplingParams(max_new_tokens=9))
    streamed = []
    while (message := scheduler.outbox.get(10)) is not None and message.type == "stream":
        streamed.append(message.data)
    assert message is not None
    assert streamed == message.data["ids"]


def test_a_request_that_can_never_fit_fails_alone(engine: Open) -> None:
    scheduler = engine(kv_blocks=4, block_size=4, max_context=100)
    ask(scheduler, "long prompt", [1] * 50)
    ask(scheduler, "over context", [1] * 100)
    ask(scheduler, "grows", [1] * 10, sampling=SamplingParams(max_new_tokens=40))
    ask(scheduler, "empty", [])
    ask(scheduler, "good", [5, 9, 2, 7])
    final = collect(scheduler, 5)
    assert final["good"].data["ids"] == generate(MODEL, [5, 9, 2, 7], SamplingParams(max_new_tokens=12))
    for name, word in {
        "long prompt": "KV cache",
        "over context": "context",
        "grows": "KV cache",
        "empty": "empty",
    }.items():
        assert final[name].type == "error"
        assert word in str(final[name].data)
    assert resting(scheduler)


def test_the_context_ends_a_reply_with_length(engine: Open) -> None:
    scheduler = engine(max_context=10)
    ask(scheduler, "r", [1, 2, 3], sampling=SamplingParams(max_new_tokens=100))
    answer = collect(scheduler, 1)["r"].data
    assert len(answer["ids"]) == 7
    assert answer["reason"] == "length"


@pytest.mark.parametrize("poison", ["receive", "emit", "result", "forward"])
def test_a_failure_stays_with_its_request(engine: Open, poison: str) -> None:
    scheduler = engine()
    for index in range(6):
        ask(scheduler, f"good {index}", PROMPTS[index], sampling=SAMPLINGS[index])
    bad = [toy_model.POISON_TOKEN, 1] if poison == "forward" else [1, 2]
    ask(scheduler, "bad", bad, poison=poison)
    final = collect(scheduler, 7)
    assert final["bad"].type == "error"
    assert [final[f"good {index}"].data["ids"] for index in range(6)] == EXPECTED[:6]
    assert resting(scheduler)


def test_the_message_of_a_failure_may_be_anyones_code(engine: Open) -> None:
    class Exits(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    class Model(ToyModel):
        def forward(self, batch: ForwardBatch) -> ForwardOutput:
            if (batch.input_ids == toy_model.POISON_TOKEN).any():
                raise Exits
            return super().forward(batch)

    scheduler = engine(ToyRunner(Model()))
    for index in range(3):
        ask(scheduler, str(index), PROMPTS[index], sampling=SAMPLINGS[index])
    ask(scheduler, "bad", [toy_model.POISON_TOKEN, 1])
    final = collect(scheduler, 4)
    assert isinstance(final["bad"].data, Exits)
    assert [final[str(index)].data["ids"] for index in range(3)] == EXPECTED[:3]


def test_nan_in_one_requests_cache_stays_with_it(engine: Open) -> None:
    """The first request owns the cache's first block, and all its values are NaN; the others are shorter."""
    model = ToyModel()
    model.table[90] = float("nan")
    scheduler = engine(ToyRunner(model), chunk_size=8)
    ask(scheduler, "bad", [90] * 40)
    for index in (0, 1, 4):
        ask(scheduler, str(index), PROMPTS[index], sampling=SAMPLINGS[index])
    final = collect(scheduler, 4)
    assert isinstance(final["bad"].data, FloatingPointError)
    assert [final[str(index)].data["ids"] for index in (0, 1, 4)] == [EXPECTED[index] for index in (0, 1, 4)]


def test_padding_reads_no_neighbours_memory() -> None:
    """Rows of different lengths in one decode step: a NaN in the longer one's cache must not reach the shorter one."""
    layout = KVLayout(1, 1, 4, torch.float32)
    cache = KVCache(layout, 8, 4, torch.device("cpu"))
    requests = [ARRequest(name, OmniRequest(), [1] * 12, SamplingParams()) for name in ("long", "short")]
    assert cache.reserve("long", 12)
    assert cache.reserve("short", 4)
    cache.keys[0].fill_(1.0)
    cache.values[0].fill_(1.0)
    cache.values[0][cache.slots("long", 0, 12)] = float("nan")
    attention = PagedAttention(cache, requests, [11, 3], [1, 1])
    row = torch.ones(2, 1, 4)
    assert torch.equal(attention(0, row, row, row)[1], torch.ones(1, 4))


def test_a_release_that_raises_does_not_stop_the_engine(engine: Open) -> None:
    class Leaky(ToyRunner):
        def release(self, request_id: str) -> None:
            raise SystemExit(request_id)

    scheduler = engine(Leaky(MODEL))
    ask(scheduler, "bad", [1, 2], poison="emit")
    ask(scheduler, "gone", [1, 2], sampling=SamplingParams(max_new_tokens=400))
    scheduler.abort("gone")
    ask(scheduler, "good", PROMPTS[0], sampling=SAMPLINGS[0])
    final = collect(scheduler, 2)
    assert final["bad"].type == "error"
    assert final["good"].data["ids"] == EXPECTED[0]


def test_no_message_follows_an_abort_made_during_a_step() -> None:
    class Aborting(ToyRunner):
        def after_sampling(self, *_: Any) -> None:
            scheduler.abort("r")
            scheduler.outbox.drain()

    scheduler = EngineScheduler(Aborting(MODEL), kv_blocks=20, max_context=100)
    ask(scheduler, "r", [1, 2], sampling=SamplingParams(max_new_tokens=1))
    assert scheduler.loop.turn()
    assert scheduler.statistics()["steps"] == 1
    assert scheduler.outbox.drain() == []
    scheduler.loop.drop_aborted()
    assert resting(scheduler)


@pytest.mark.parametrize("seed", few(range(20), 4))
def test_tight_caches_and_small_steps_change_nothing(engine: Open, seed: int) -> None:
    """A decoding request can be preempted by an older prompt in the same step that planned it."""
    chance = random.Random(seed)
    jobs = [
        (
            [chance.randrange(90) for _ in range(chance.choice([2, 5, 30, 60]))],
            SamplingParams(
                max_new_tokens=chance.choice([5, 20, 40]), suppressed_ids=frozenset({toy_model.POISON_TOKEN})
            ),
        )
        for _ in range(6)
    ]
    scheduler = engine(
        kv_blocks=chance.choice([26, 28, 30]),
        block_size=4,
        chunk_size=chance.choice([3, 4, 8]),
        max_batch_tokens=chance.choice([12, 32]),
    )
    assert ids_together(scheduler, jobs) == [generate(MODEL, *job) for job in jobs]
    assert resting(scheduler)


def test_a_step_plans_a_request_once_and_readmits_no_preempted_request() -> None:
    """The newest is preempted for the oldest; the freed blocks must not be allocated to it again in the same step."""
    cache = KVCache(KVLayout(1, 1, 4, torch.float32), 8, 1, torch.device("cpu"))
    batcher = Batcher(cache, max_running=4, max_batch_tokens=64, chunk_size=2)
    old, new = (ARRequest(name, OmniRequest(), [1] * 4, SamplingParams()) for name in ("old", "new"))
    for request in (old, new):
        assert cache.reserve(request.request_id, 4)
        request.computed, request.output_ids = 4, [1]
        batcher.running.append(request)
    plan = batcher.plan(lambda request: True)
    assert plan.work == [(old, 1)]
    assert list(batcher.waiting) == [new]
    assert batcher.preemptions == 1


def test_a_request_that_waits_for_its_stream_does_not_block_later_ones() -> None:
    cache = KVCache(KVLayout(1, 1, 4, torch.float32), 8, 1, torch.device("cpu"))
    batcher = Batcher(cache, max_running=4, max_batch_tokens=64, chunk_size=8)
    parked, ready = (ARRequest(name, OmniRequest(), [1] * 4, SamplingParams()) for name in ("parked", "ready"))
    parked.output_ids = [1]
    batcher.waiting.extend([parked, ready])
    assert batcher.plan(lambda request: request is not parked).work == [(ready, 4)]


def test_frames_of_a_step_that_failed_half_way_are_not_sent_twice(engine: Open) -> None:
    class Choking(toy_model.SumFeedback):
        def extract_output(self, batch: Any, output: Any, requests: Any) -> Any:
            produced = super().extract_output(batch, output, requests)
            if any(request.state.get("poison") == "extract" for request, _ in requests):
                raise ArithmeticError("the second network choked")
            return produced

    runner = FeedbackRunner(MODEL, Choking())
    scheduler = EngineScheduler(runner, kv_blocks=50, max_context=100)
    ask(scheduler, "good", [1, 2], sampling=SamplingParams(max_new_tokens=6))
    ask(scheduler, "bad", [3, 4], sampling=SamplingParams(max_new_tokens=6), poison="extract")
    while scheduler.statistics()["steps"] < 6:
        assert scheduler.loop.turn()
    messages = scheduler.outbox.drain()
    ids = [message.data[0] for message in messages if message.type == "stream" and message.request_id == "good"]
    (result,) = [message.data for message in messages if message.type == "result"]
    assert ids == result["ids"][:-1]  # the last token finishes the request and makes no frame
    assert [message.type for message in messages if message.request_id == "bad"] == ["error"]


def test_a_strategy_ends_a_request_by_its_whole_frame(engine: Open) -> None:
    class Ending(toy_model.SumFeedback):
        def extract_output(self, batch: Any, output: Any, requests: Any) -> Any:
            for request, _ in requests:
                if request.request_id == "ends" and len(request.output_ids) == 3:
                    request.finish_reason = "stop"
            return super().extract_output(batch, output, requests)

    scheduler = EngineScheduler(FeedbackRunner(MODEL, Ending()), kv_blocks=50, max_context=100)
    for name in ("ends", "other"):
        ask(scheduler, name, [1, 2], sampling=SamplingParams(max_new_tokens=6))
    while scheduler.statistics()["steps"] < 6:
        assert scheduler.loop.turn()
    messages = scheduler.outbox.drain()
    results = {each.request_id: each.data for each in messages if each.type == "result"}
    assert {name: (len(each["ids"]), each["reason"]) for name, each in results.items()} == {
        "ends": (3, "stop"), "other": (6, "length"),
    }  # fmt: skip
    assert results["ends"]["ids"] == results["other"]["ids"][:3]
    assert [each.type for each in messages if each.request_id == "ends"] == ["stream"] * 3 + ["result"]
    assert scheduler.statistics()["running"] == 0


def test_the_feedback_loop_survives_preemption(engine: Open) -> None:
    sampling = SamplingParams(max_new_tokens=20, temperature=0.7, seed=9)
    prompts = [[n, n + 1, n + 2] for n in range(6)]
    expected = [feedback_alone(MODEL, prompt, sampling) for prompt in prompts]
    assert expected[0] != generate(MODEL, prompts[0], sampling), "the feedback has no effect"
    scheduler = engine(FeedbackRunner(MODEL), kv_blocks=12, block_size=4)
    assert ids_together(scheduler, [(prompt, sampling) for prompt in prompts]) == expected
    assert scheduler.statistics()["preemptions"] > 0


def test_a_request_that_waits_for_a_stream_sleeps_and_wakes(engine: Open) -> None:
    sampling = SamplingParams(max_new_tokens=8)
    scheduler = engine(FeedbackRunner(MODEL))
    ask(scheduler, "r", [1, 2], sampling=sampling, allowed=3)
    time.sleep(0.2)
    steps = scheduler.statistics()["steps"]
    assert len([message for message in scheduler.outbox.drain() if message.type == "stream"]) == 3
    time.sleep(0.2)
    assert scheduler.statistics()["steps"] == steps, "it computes while it has nothing to compute"
    scheduler.inbox.put(IncomingMessage("r", "stream_chunk", 100))
    assert collect(scheduler, 1)["r"].data["ids"] == feedback_alone(MODEL, [1, 2], sampling)
    ask(scheduler, "parked", [1, 2], sampling=sampling, allowed=1)
    time.sleep(0.1)
    scheduler.abort("parked")
    assert resting(scheduler)


def test_its_thread_uses_the_runner_s_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    runner = ToyRunner(MODEL)
    scheduler = EngineScheduler(runner, kv_blocks=8)
    runner.device = torch.device("cuda:1")
    scheduler.stop()
    scheduler.start()
    assert used == [torch.device("cuda:1")]


def weights() -> ModelRunner:
    """A runner's loader that must not be called."""
    raise AssertionError("weights were read")


@pytest.mark.parametrize(
    ("name", "hint"), [("chunk_sise", "did you mean 'chunk_size'"), ("colour", "there are: max_running, ")]
)
def test_an_unknown_option_is_named_before_weights_are_read(
    name: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "engine_stages", sys.modules[__name__])
    spec = StageSpec(
        name="talker",
        model_runner="engine_stages:weights",
        scheduler="omni_torch.engine.scheduler:EngineScheduler",
        factory_args={"block_size": 4, name: 1},
    )
    with pytest.raises(
        ConfigError, match=rf"stages\[talker\].factory_args.{name}: no part has such a parameter .*; {hint}"
    ):
        build_scheduler(spec)


def test_ranks_must_agree_on_the_cache_and_record_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"kv_fraction: the ranks must agree .* give kv_cache_mb"):
        EngineScheduler(ToyRunner(MODEL), kv_fraction=0.5, tp_size=2)
    wanted: list[Any] = []
    monkeypatch.setattr("omni_torch.engine.scheduler.Graphs.choose", lambda device, wish: wanted.append(wish))
    for options in ({"tp_size": 2}, {}, {"tp_size": 2, "cuda_graphs": True}):
        EngineScheduler(ToyRunner(MODEL), kv_blocks=8, **options)
    assert wanted == [False, True, True]


def test_the_context_is_the_runner_s_unless_it_is_set() -> None:
    runner = ToyRunner(MODEL)
    runner.max_context = 5
    for options, fits in (({}, False), ({"max_context": 50}, True)):
        scheduler = EngineScheduler(runner, kv_blocks=8, **options)
        ask(scheduler, "r", [1] * 6, sampling=SamplingParams(max_new_tokens=1))
        threading.Thread(target=scheduler.start, daemon=True).start()
        final = collect(scheduler, 1)["r"]
        scheduler.stop()
        assert (final.type == "result") is fits, final.data


def test_the_cache_is_freed_with_the_last_reference() -> None:
    gc.disable()
    try:
        scheduler = EngineScheduler(ToyRunner(MODEL), kv_blocks=8)
        cache = weakref.ref(scheduler.cache)
        del scheduler
        assert cache() is None, "a cycle keeps it until the next garbage collection"
    finally:
        gc.enable()


def test_a_model_of_another_scheduler_is_refused() -> None:
    model = ToyModel()
    model.required_scheduler = "elsewhere.scheduler:Other"  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match=r"ToyModel computes on elsewhere.scheduler:Other only, not on EngineScheduler"
    ):
        EngineScheduler(ToyRunner(model), kv_blocks=8)
    model.required_scheduler = "omni_torch.engine.scheduler:EngineScheduler"  # type: ignore[attr-defined]
    EngineScheduler(ToyRunner(model), kv_blocks=8)


def test_queues_that_replace_its_own_are_the_ones_it_uses() -> None:
    """A tensor parallel stage replaces both: its ranks share an inbox and agree on failures."""
    scheduler = EngineScheduler(ToyRunner(MODEL), kv_blocks=8, max_context=64)
    own = scheduler.outbox
    scheduler.inbox, scheduler.outbox = type(scheduler.inbox)(), type(scheduler.outbox)()
    ask(scheduler, "r", [1, 2], sampling=SamplingParams(max_new_tokens=1))
    assert scheduler.loop.turn()
    assert [message.type for message in scheduler.outbox.drain()][-1] == "result"
    assert own.drain() == []


def test_a_step_that_does_not_end_is_seen_in_the_inbox(engine: Open) -> None:
    """The stage tells by it that a compute goes on: the loop reads its inbox before each step, and waits there while it has none."""
    begun, may_end = threading.Event(), threading.Event()

    class Stuck(ToyRunner):
        def can_step(self, request: ARRequest) -> bool:
            begun.set()
            return may_end.wait()

    scheduler = engine(Stuck(MODEL))
    ask(scheduler, "r", [3, 4])
    begun.wait()
    read_at = scheduler.inbox.read_at
    ask(scheduler, "unread", [3, 4])
    scheduler.abort("unread")
    assert scheduler.inbox.read_at == read_at < time.monotonic()
    may_end.set()
    collect(scheduler, 1)
    while scheduler.inbox.read_at < float("inf"):  # it is idle soon
        time.sleep(0.001)


def test_a_request_whose_outputs_are_not_read_is_left_out_and_the_others_go_on(engine: Open) -> None:
    scheduler = engine()
    sampling = SamplingParams(max_new_tokens=300, suppressed_ids=frozenset([toy_model.POISON_TOKEN]))
    paused = threading.Event()

    def pause_first(request: ARRequest, token: int) -> None:
        if request.request_id == "slow" and not paused.is_set():
            scheduler.pause("slow", True)
            paused.set()

    emit = scheduler.loop._runner.emit
    scheduler.loop._runner.emit = lambda request, token: (pause_first(request, token), emit(request, token))[1]  # type: ignore[method-assign]
    ask(scheduler, "slow", [3, 4], sampling=sampling)
    paused.wait(5)
    ask(scheduler, "other", [5, 6], sampling=sampling)
    assert collect(scheduler, 1).keys() == {"other"}
    while scheduler.inbox.read_at < float("inf"):  # it sleeps: nothing can be computed
        time.sleep(0.001)
    assert scheduler.statistics()["running"] == 1
    scheduler.pause("slow", False)
    assert collect(scheduler, 1)["slow"].data["ids"] == generate(MODEL, [3, 4], sampling)


def test_a_request_that_is_paused_can_be_aborted(engine: Open) -> None:
    scheduler = engine()
    ask(scheduler, "slow", [3, 4], sampling=SamplingParams(max_new_tokens=300))
    scheduler.pause("slow", True)
    scheduler.abort("slow")
    scheduler.pause("slow", False)
    ask(scheduler, "other", [5, 6])
    assert collect(scheduler, 1).keys() == {"other"}
    assert scheduler.loop.paused == set()
