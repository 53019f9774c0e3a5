"""SGLang's scheduler equals a plain loop and the engine, whatever it batches, chunks, shares or retracts, and leaks no
memory.
"""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch
import toy_model
from asking import JOBS, PROMPTS, SAMPLINGS, ask, collect, feedback_alone, ids_of, ids_together
from running import running
from sglang_toy import MODEL
from tiers import few
from toy_model import POISON_TOKEN, FeedbackRunner, ToyModel, ToyRunner, generate

from omni_core.errors import ConfigError
from omni_core.model_runner import ARRequest, ForwardBatch, ForwardOutput, ModelRunner, SamplingParams
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_sglang.scheduler import OmniScheduler
from omni_torch.engine.scheduler import EngineScheduler

EAGER = {"schedule_conservativeness": 0.01}
"""SGLang admits more than will fit, so that requests are retracted."""

EXPECTED = [generate(MODEL, prompt, sampling) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]

Open = Callable[..., OmniScheduler]


class Watching(ToyRunner):
    """Records the work of every step: ``(request, start, length)``."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.work: list[list[tuple[str, int, int]]] = []

    def before_forward(self, batch: ForwardBatch) -> None:
        ids = [request.request_id for request in batch.requests]
        self.work.append(list(zip(ids, batch.starts, batch.lengths, strict=True)))

    def of(self, name: str) -> list[tuple[int, int]]:
        return [(start, length) for step in self.work for each, start, length in step if each == name]


def make(runner: ModelRunner | None = None, **options: Any) -> OmniScheduler:
    options = {"max_context": 512, "kv_blocks": 3000, **options}
    return OmniScheduler(runner or ToyRunner(MODEL), **options)


@pytest.fixture
def sglang() -> Iterator[Open]:
    """Opens one scheduler, which must end in time, with nothing held and nothing leaked."""
    opened = []

    def start(runner: ModelRunner | None = None, **options: Any) -> OmniScheduler:
        scheduler = make(runner, **options)
        thread = threading.Thread(target=scheduler.start, daemon=True)
        thread.start()
        opened.append((scheduler, thread))
        return scheduler

    yield start
    for scheduler, thread in opened:
        rested = resting(scheduler)
        scheduler.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert rested, f"left over: {scheduler.statistics()}"
        assert scheduler.runtime.rest() is None


def resting(scheduler: OmniScheduler) -> bool:
    """Return True if everything is released within two seconds."""
    for _ in range(200):
        state = scheduler.statistics()
        held = state["running"] + state["waiting"] + state["pending"] + state["parked"]
        if state["free_tokens"] == state["total_tokens"] and not held:
            return True
        time.sleep(0.01)
    return False


# --- the same tokens -------------------------------------------------------------------------------------------------
def test_single_requests_equal_the_plain_loop(sglang: Open) -> None:
    scheduler = sglang()
    for index, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True)):
        ask(scheduler, "r", prompt, sampling=sampling)
        answer = collect(scheduler, 1)["r"].data
        assert answer["ids"] == EXPECTED[index]
        assert answer["reason"] == ("stop" if EXPECTED[index][-1] in sampling.stop_ids else "length")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_size": 7, "max_batch_tokens": 16},
        {"chunk_size": 16, "server_args": {"enable_mixed_chunk": True}},
        {"block_size": 4, "kv_blocks": 500},
        {"max_running": 2},
        {"kv_blocks": 110},
        {"kv_blocks": 110, "server_args": EAGER},
        {"server_args": {"disable_radix_cache": True}},
        {"server_args": {"schedule_policy": "lpm"}},
    ],
    ids=str,
)
def test_a_mixed_batch_equals_single_requests(sglang: Open, options: dict[str, Any]) -> None:
    assert ids_together(sglang(**options), JOBS) == EXPECTED


def test_results_equal_the_engines(sglang: Open) -> None:
    chance = random.Random(4)
    jobs = [
        ([chance.randrange(90) for _ in range(chance.choice([2, 30, 130]))], SamplingParams(max_new_tokens=25))
        for _ in range(12)
    ]
    engine = EngineScheduler(ToyRunner(MODEL), max_context=512, kv_blocks=200)
    with running(engine):
        ours = ids_together(engine, jobs)
    assert ids_together(sglang(chunk_size=32), jobs) == ours


def test_streamed_tokens_are_the_result(sglang: Open) -> None:
    scheduler = sglang()
    ask(scheduler, "r", [1, 2], sampling=SamplingParams(max_new_tokens=9))
    streamed = []
    while (message := scheduler.outbox.get(10)) is not None and message.type == "stream":
        streamed.append(message.data)
    assert message is not None
    assert streamed == message.data["ids"]


def test_a_long_prompt_is_computed_in_chunks(sglang: Open) -> None:
    runner = Watching()
    scheduler = sglang(runner, chunk_size=16)
    prompt = [n % 90 for n in range(100)]
    ask(scheduler, "r", prompt, sampling=SamplingParams(max_new_tokens=2))
    assert collect(scheduler, 1)["r"].data["ids"] == generate(MODEL, prompt, SamplingParams(max_new_tokens=2))
    assert [length for _, length in runner.of("r")] == [16, 16, 16, 16, 16, 16, 4, 1]


def test_a_known_beginning_is_not_computed_again(sglang: Open) -> None:
    runner = Watching()
    scheduler = sglang(runner)
    prompt = [n % 90 for n in range(80)]
    for name, tail in (("first", [1, 2]), ("second", [7, 3, 1])):
        sampling = SamplingParams(max_new_tokens=5)
        ask(scheduler, name, prompt + tail, sampling=sampling)
        assert collect(scheduler, 1)[name].data["ids"] == generate(MODEL, prompt + tail, sampling)
    assert runner.of("first")[0] == (0, 82)
    assert runner.of("second")[0] == (80, 3)


def test_embeddings_replace_ids_and_are_never_shared(sglang: Open) -> None:
    """Equal ids, different embeddings: the second request must not be given the first one's K and V."""

    class Embedding(Watching):
        def receive(self, message: IncomingMessage) -> ARRequest | None:
            request = super().receive(message)
            if request is not None:
                request.prompt_embeds = self.model.embed(torch.tensor(request.prompt_ids))
                request.prompt_ids = [-1] * len(request.prompt_ids)
            return request

    runner = Embedding()
    scheduler = sglang(runner, chunk_size=16)
    for name, prompt in (("a", list(range(30))), ("b", list(range(30, 60)))):
        ask(scheduler, name, prompt)
        assert collect(scheduler, 1)[name].data["ids"] == generate(MODEL, prompt, SamplingParams(max_new_tokens=12))
        assert runner.of(name)[:2] == [(0, 16), (16, 14)]


def test_hidden_states_are_streamed(sglang: Open) -> None:
    """A runner that streams the hidden state of each token: equal to a forward over the whole sequence."""

    class Hidden(ToyRunner):
        def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
            for index, row in zip(batch.sampled, batch.sample_rows.tolist(), strict=True):
                batch.requests[index].state["hidden"] = output.hidden[row].clone()

        def emit(self, request: ARRequest, token_id: int) -> Any:
            yield OutgoingMessage(request.request_id, "stream", request.state["hidden"])

    scheduler = sglang(Hidden(MODEL), chunk_size=8)
    prompt = list(range(40, 60))
    ask(scheduler, "r", prompt, sampling=SamplingParams(max_new_tokens=6))
    streamed = []
    while (message := scheduler.outbox.get(10)) is not None and message.type == "stream":
        streamed.append(message.data)
    assert message is not None
    ids = torch.tensor(prompt + message.data["ids"][:-1])
    whole = MODEL.run(MODEL.embed(ids), torch.arange(len(ids)), toy_model.full_attention)
    torch.testing.assert_close(torch.stack(streamed), whole[len(prompt) - 1 :], atol=1e-5, rtol=1e-5)


# --- a full pool -----------------------------------------------------------------------------------------------------
def test_a_full_pool_retracts_and_the_output_stays(sglang: Open) -> None:
    scheduler = sglang(kv_blocks=80, server_args=EAGER)
    sampling = SamplingParams(max_new_tokens=30, temperature=0.7, seed=9)
    jobs = [([n, n + 1, n + 2], sampling) for n in range(6)]
    assert ids_together(scheduler, jobs) == [generate(MODEL, *job) for job in jobs]
    assert scheduler.statistics()["preemptions"] > 0


@pytest.mark.parametrize("seed", few(range(5), 4))
def test_tight_pools_and_small_chunks_change_nothing(sglang: Open, seed: int) -> None:
    chance = random.Random(seed)
    jobs = [
        (
            [chance.randrange(90) for _ in range(chance.choice([2, 5, 30, 60]))],
            SamplingParams(max_new_tokens=chance.choice([5, 20, 40]), suppressed_ids=frozenset({POISON_TOKEN})),
        )
        for _ in range(8)
    ]
    scheduler = sglang(
        kv_blocks=chance.choice([110, 120, 130]),
        chunk_size=chance.choice([4, 8]),
        server_args={**EAGER, "enable_mixed_chunk": chance.random() < 0.5},
    )
    assert ids_together(scheduler, jobs) == [generate(MODEL, *job) for job in jobs]


def test_a_request_that_can_never_fit_fails_alone(sglang: Open) -> None:
    scheduler = sglang(kv_blocks=40, max_context=100)
    ask(scheduler, "long prompt", [1] * 50)
    ask(scheduler, "over context", [1] * 100)
    ask(scheduler, "nearly too long", [1] * 38, sampling=SamplingParams(max_new_tokens=1))
    ask(scheduler, "grows", [1] * 10, sampling=SamplingParams(max_new_tokens=60))
    ask(scheduler, "empty", [])
    ask(scheduler, "good", [5, 9, 2, 7])
    final = collect(scheduler, 6)
    assert final["good"].data["ids"] == generate(MODEL, [5, 9, 2, 7], SamplingParams(max_new_tokens=12))
    for name, word in {
        "long prompt": "KV cache",
        "over context": "context",
        "grows": "KV cache",
        "nearly too long": "SGLang rejects",
        "empty": "empty",
    }.items():
        assert final[name].type == "error"
        assert word in str(final[name].data)


def test_the_context_ends_a_reply_with_length(sglang: Open) -> None:
    scheduler = sglang(max_context=10)
    ask(scheduler, "r", [1, 2, 3], sampling=SamplingParams(max_new_tokens=100))
    answer = collect(scheduler, 1)["r"].data
    assert len(answer["ids"]) == 7
    assert answer["reason"] == "length"


# --- what goes wrong -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("poison", ["receive", "emit", "result", "forward", "late chunk"])
def test_a_failure_stays_with_its_request(sglang: Open, poison: str) -> None:
    scheduler = sglang(chunk_size=16)
    for index in range(6):
        ask(scheduler, str(index), PROMPTS[index], sampling=SAMPLINGS[index])
    bad = {"forward": [POISON_TOKEN, 1], "late chunk": [7] * 60 + [POISON_TOKEN] + [7] * 60}.get(poison, [1, 2])
    ask(scheduler, "bad", bad, poison=poison)
    final = collect(scheduler, 7)
    assert final.pop("bad").type == "error"
    assert ids_of(final, 6) == EXPECTED[:6]


def test_a_fault_in_the_middle_of_a_reply_stays_with_its_request(sglang: Open) -> None:
    """The decode batch of all of them raises; each is computed again alone, and only the failing one fails."""

    class Stumbling(ToyRunner):
        def before_forward(self, batch: ForwardBatch) -> None:
            if any(request.request_id == "bad" and len(request.output_ids) == 5 for request in batch.requests):
                raise MemoryError("on the sixth token")

    scheduler = sglang(Stumbling(MODEL))
    ask(scheduler, "bad", [8, 9], sampling=SamplingParams(max_new_tokens=50))
    for index in range(6):
        ask(scheduler, str(index), PROMPTS[index], sampling=SAMPLINGS[index])
    final = collect(scheduler, 7)
    assert isinstance(final.pop("bad").data, MemoryError)
    assert ids_of(final, 6) == EXPECTED[:6]


def test_a_stage_goes_on_after_many_failed_batches(sglang: Open) -> None:
    """The memory of a failed batch is released each time: the pool is small enough for a leak to show."""
    scheduler = sglang(kv_blocks=150)
    for round in range(12):
        for name in ("bad", "worse"):
            ask(scheduler, f"{name}{round}", [POISON_TOKEN] + [round] * 60)
        ask(scheduler, f"good{round}", PROMPTS[1])
    final = collect(scheduler, 36)
    assert {message.type for name, message in final.items() if not name.startswith("good")} == {"error"}
    expected = generate(MODEL, PROMPTS[1], SamplingParams(max_new_tokens=12))
    assert all(final[f"good{round}"].data["ids"] == expected for round in range(12))


def test_frames_of_a_step_that_failed_half_way_are_not_sent_twice(sglang: Open) -> None:
    class Choking(toy_model.SumFeedback):
        def extract_output(self, batch: Any, output: Any, requests: Any) -> Any:
            produced = super().extract_output(batch, output, requests)
            if any(request.state.get("poison") == "extract" for request, _ in requests):
                raise ArithmeticError("the second network choked")
            return produced

    runner = FeedbackRunner(MODEL, Choking())
    scheduler = sglang(runner)
    ask(scheduler, "good", [1, 2], sampling=SamplingParams(max_new_tokens=6))
    ask(scheduler, "bad", [3, 4], sampling=SamplingParams(max_new_tokens=6), poison="extract")
    messages: list[OutgoingMessage] = []
    while len([each for each in messages if each.type != "stream"]) < 2:
        message = scheduler.outbox.get(10)
        assert message is not None
        messages.append(message)
    ids = [message.data[0] for message in messages if message.type == "stream" and message.request_id == "good"]
    (result,) = [message.data for message in messages if message.type == "result"]
    assert ids == result["ids"][:-1]
    assert [message.type for message in messages if message.request_id == "bad"] == ["error"]


# --- aborts ----------------------------------------------------------------------------------------------------------
def test_an_abort_in_every_phase() -> None:
    """In each phase in turn: waiting, between two chunks, just after the prompt, while generating."""
    scheduler = make(chunk_size=16, max_running=2)
    scheduler.runtime.connect(scheduler._compute)
    long, short = [n % 90 for n in range(60)], [4, 5]

    def turn() -> None:
        with torch.inference_mode():
            assert scheduler.loop.turn()

    def abort(name: str) -> None:
        scheduler.abort(name)
        scheduler.outbox.drain()

    ask(scheduler, "chunked", long)
    ask(scheduler, "waiting", short)
    turn()
    turn()
    assert scheduler.runtime.running == 1
    abort("waiting")
    abort("chunked")
    ask(scheduler, "prompt", short)
    turn()
    assert scheduler.statistics()["pending"] == scheduler.runtime.running == 1
    abort("prompt")
    ask(scheduler, "writing", short)
    for _ in range(4):
        turn()
    assert scheduler.outbox.drain()
    abort("writing")
    ask(scheduler, "last", short, sampling=SamplingParams(max_new_tokens=1))
    turn()
    assert [message.request_id for message in scheduler.outbox.drain()] == ["last", "last"]
    assert resting(scheduler)
    assert scheduler.runtime.rest() is None
    scheduler.runtime.close()


def test_an_abort_reaches_only_its_own_request(sglang: Open) -> None:
    """SGLang's abort matches by prefix."""
    scheduler = sglang()
    for name in ("r", "r1", "r12"):
        ask(scheduler, name, PROMPTS[1])
    scheduler.abort("r")
    final = collect(scheduler, 2)
    assert set(final) == {"r1", "r12"}


# --- a feedback loop -------------------------------------------------------------------------------------------------
def test_the_feedback_loop_survives_retraction(sglang: Open) -> None:
    sampling = SamplingParams(max_new_tokens=30, temperature=0.7, seed=9)
    prompts = [[n, n + 1, n + 2] for n in range(6)]
    expected = [feedback_alone(MODEL, prompt, sampling) for prompt in prompts]
    assert expected[0] != generate(MODEL, prompts[0], sampling), "the feedback has no effect"
    scheduler = sglang(FeedbackRunner(MODEL), kv_blocks=80, server_args=EAGER)
    assert ids_together(scheduler, [(prompt, sampling) for prompt in prompts]) == expected
    assert scheduler.statistics()["preemptions"] > 0


def test_fed_back_outputs_are_never_shared(sglang: Open) -> None:
    """The second prompt is the first one's and its reply, as ids; the K and V of that reply are of embeddings."""
    sampling = SamplingParams(max_new_tokens=12)
    scheduler = sglang(FeedbackRunner(MODEL))
    ask(scheduler, "first", [1, 2, 3], sampling=sampling)
    longer = [1, 2, 3, *collect(scheduler, 1)["first"].data["ids"]]
    ask(scheduler, "second", longer, sampling=sampling)
    assert collect(scheduler, 1)["second"].data["ids"] == feedback_alone(MODEL, longer, sampling)


def test_a_request_that_waits_for_a_stream_sleeps_and_wakes(sglang: Open) -> None:
    sampling = SamplingParams(max_new_tokens=8)
    scheduler = sglang(FeedbackRunner(MODEL))
    ask(scheduler, "r", [1, 2], sampling=sampling, allowed=3)
    time.sleep(0.3)
    steps = scheduler.statistics()["steps"]
    assert len([message for message in scheduler.outbox.drain() if message.type == "stream"]) == 3
    assert scheduler.statistics()["parked"] == 1
    time.sleep(0.2)
    assert scheduler.statistics()["steps"] == steps, "it computes while it has nothing to compute"
    scheduler.inbox.put(IncomingMessage("r", "stream_chunk", 100))
    assert collect(scheduler, 1)["r"].data["ids"] == feedback_alone(MODEL, [1, 2], sampling)
    ask(scheduler, "parked", [1, 2], sampling=sampling, allowed=1)
    time.sleep(0.2)
    scheduler.abort("parked")
    assert resting(scheduler)


def test_positions_computed_before_a_wait_are_kept(sglang: Open) -> None:
    class WatchingFeedback(FeedbackRunner):
        lengths: list[tuple[int, int]] = []  # noqa: RUF012 - one test, one runner

        def before_forward(self, batch: ForwardBatch) -> None:
            self.lengths.extend(zip(batch.starts, batch.lengths, strict=True))
            super().before_forward(batch)

    runner = WatchingFeedback(MODEL)
    scheduler = sglang(runner)
    ask(scheduler, "r", list(range(40)), sampling=SamplingParams(max_new_tokens=6), allowed=4)
    while not scheduler.statistics()["parked"]:
        time.sleep(0.01)
    scheduler.inbox.put(IncomingMessage("r", "stream_chunk", 2))
    collect(scheduler, 1)
    assert runner.lengths == [(0, 40), (40, 1), (41, 1), (42, 1), (43, 1), (44, 1)]


# --- one per process -------------------------------------------------------------------------------------------------
def test_a_second_one_is_refused_and_the_first_goes_on(sglang: Open) -> None:
    first = sglang()
    with pytest.raises(ConfigError, match="second SGLang scheduler"):
        make()
    ask(first, "r", PROMPTS[1])
    assert collect(first, 1)["r"].data["ids"] == generate(MODEL, PROMPTS[1], SamplingParams(max_new_tokens=12))


def test_no_socket_listens_on_an_external_interface() -> None:
    scheduler = make()
    addresses = {each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == "LISTEN"}
    assert addresses <= {"127.0.0.1"}
    scheduler.runtime.close()


def test_an_ended_scheduler_leaves_nothing() -> None:
    def one() -> int:
        scheduler = make()
        inside = weakref.ref(scheduler.runtime._scheduler)
        scheduler.runtime.close()
        del scheduler
        gc.collect()
        assert inside() is None, "SGLang's scheduler outlives ours"
        return psutil.Process().num_threads()

    threads = one()
    assert one() <= threads + 1, "its threads outlive it"  # one stays: SGLang's watchdog, which sleeps


def test_an_existing_process_group_is_an_error() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match="default process group"):
            make()
    finally:
        torch.distributed.destroy_process_group()


def test_a_model_without_query_heads_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"ToyModel\.kv_layout\.heads: unset"):
        make(ToyRunner(ToyModel()))


def test_one_that_could_not_be_built_leaves_the_process_free(sglang: Open) -> None:
    with pytest.raises(Exception, match="no_such_backend"):
        make(server_args={"attention_backend": "no_such_backend"})
    gc.collect()
    scheduler = sglang()
    ask(scheduler, "r", PROMPTS[1])
    assert collect(scheduler, 1)["r"].type == "result"
