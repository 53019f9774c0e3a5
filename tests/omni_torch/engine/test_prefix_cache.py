"""The prefix cache: requests share equal prefixes only, and results do not depend on it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_model
from asking import collect, ids_together
from attrs import evolve
from engine_harness import Driven
from running import running
from tiers import few
from toy_model import FeedbackRunner, ToyModel, ToyRunner, generate

from omni_core.errors import ConfigError
from omni_core.model_runner import (
    ARRequest,
    ContentSpan,
    ForwardBatch,
    ForwardOutput,
    KVLayout,
    SamplingParams,
)
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage
from omni_torch.engine.kv_cache import BlockPool, KVCache
from omni_torch.engine.positions import BlockKeys
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.processes.ranks import FollowerInbox, LeaderInbox

MODEL = ToyModel()
GREEDY = SamplingParams(max_new_tokens=12, suppressed_ids=frozenset({toy_model.POISON_TOKEN}))
PLACEHOLDER = 95
Open = Callable[..., Driven]


class PictureRunner(ToyRunner):
    """Prompts whose placeholders stand for a picture: ``[rows, hidden]`` embeddings. Keeps every hidden state."""

    kept_width = toy_model.HIDDEN

    def __init__(self, *, named: bool = True) -> None:
        super().__init__(MODEL)
        self.named = named

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        request = super().receive(message)
        assert request is not None
        request.prompt_embeds = MODEL.embed(torch.tensor(request.prompt_ids))
        request.content = [] if self.named else None
        for start, picture in request.state.get("pictures", []):
            request.prompt_embeds[start : start + len(picture)] = picture
            if self.named:
                digest = picture.numpy().tobytes()
                request.content = [*(request.content or ()), ContentSpan(start, start + len(picture), digest)]
        request.state["hidden"] = torch.full((len(request.prompt_ids), toy_model.HIDDEN), float("nan"))
        return request

    def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
        if batch.keep is not None:
            batch.keep(output.hidden)
        row = 0
        for request, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
            end = min(start + length, len(request.prompt_ids))
            if start < end:
                request.state["hidden"][start:end] = output.hidden[row : row + end - start]
            row += length

    def reuse(self, request: ARRequest, rows: torch.Tensor) -> None:
        if request.state.get("poison") == "reuse":
            raise ArithmeticError("reuse")
        request.state["hidden"][: len(rows)] = rows

    def result(self, request: ARRequest) -> dict[str, Any]:
        return {**super().result(request), "hidden": request.state["hidden"]}


def picture(seed: int, rows: int = 12) -> torch.Tensor:
    return torch.randn(rows, toy_model.HIDDEN, generator=torch.Generator().manual_seed(seed))


def test_a_prompt_that_came_before_is_not_computed_again(engine: Open) -> None:
    driven = engine()
    prompt = [n % 90 for n in range(3, 300, 7)]
    expected = generate(MODEL, prompt, GREEDY)
    assert driven.answer("first", prompt, sampling=GREEDY)["ids"] == expected
    before = driven.statistics()
    assert before["reused_positions"] == 0
    assert driven.answer("second", prompt, sampling=GREEDY)["ids"] == expected
    after = driven.statistics()
    assert after["reused_positions"] == len(prompt) // 4 * 4 - (0 if len(prompt) % 4 else 4)
    assert after["positions"] - before["positions"] == len(prompt) - after["reused_positions"] + 11
    assert driven.resting()


def test_a_conversation_reuses_the_replies_too(engine: Open) -> None:
    driven = engine()
    prompt = [5, 9, 2, 7, 1]
    reply = driven.answer("turn 1", prompt, sampling=GREEDY)["ids"]
    longer = [*prompt, *reply, 8, 8, 8]
    assert driven.answer("turn 2", longer, sampling=GREEDY)["ids"] == generate(MODEL, longer, GREEDY)
    assert driven.statistics()["reused_positions"] == (len(prompt) + len(reply) - 1) // 4 * 4


@pytest.mark.parametrize("seed", few(range(12), 4))
def test_answers_are_equal_with_and_without_the_prefix_cache(engine: Open, seed: int) -> None:
    """Families of prompts with common prefixes, in a cache so tight that blocks are evicted and requests preempted."""
    chance = random.Random(seed)
    stems = [[chance.randrange(90) for _ in range(chance.choice([9, 24, 40]))] for _ in range(3)]
    jobs = []
    for index in range(14):
        stem = chance.choice(stems)
        prompt = stem[: chance.randint(1, len(stem))] + [chance.randrange(90) for _ in range(chance.randint(0, 9))]
        sampling = SamplingParams(
            max_new_tokens=chance.choice([3, 12, 25]),
            temperature=chance.choice([0.0, 0.9]),
            seed=index,
            suppressed_ids=frozenset({toy_model.POISON_TOKEN}),
        )
        jobs.append((prompt, sampling))
    blocks = chance.choice([20, 24, 40])
    driven = engine(kv_blocks=blocks, chunk_size=chance.choice([3, 8, 64]), max_batch_tokens=chance.choice([8, 64]))
    assert ids_together(driven.scheduler, jobs) == [generate(MODEL, *job) for job in jobs]
    assert driven.statistics()["reused_positions"] > 0
    assert driven.resting()


def test_equal_concurrent_prompts_compute_their_prefix_once(engine: Open) -> None:
    driven = engine(chunk_size=16)
    prompt = list(range(1, 82))
    for index in range(5):
        driven.ask(str(index), [*prompt, index], sampling=GREEDY)
    final = driven.collect(5)
    for index in range(5):
        assert final[str(index)].data["ids"] == generate(MODEL, [*prompt, index], GREEDY)
    assert driven.statistics()["reused_positions"] == 4 * 80


def test_different_pictures_behind_equal_placeholders_never_share(engine: Open) -> None:
    driven = engine(PictureRunner())
    prompt = [1, 2, 3, 4, 5, *[PLACEHOLDER] * 12, 7, 8, 9]
    alone = {}
    for seed in (1, 2):
        fresh = engine(PictureRunner(), prefix_cache=False)
        alone[seed] = fresh.answer("r", prompt, sampling=GREEDY, pictures=[(5, picture(seed))])
    assert alone[1]["ids"] != alone[2]["ids"], "the picture has no effect"
    reused = []
    for number, seed in enumerate((1, 2, 1, 2)):
        answer = driven.answer(f"r{number}", prompt, sampling=GREEDY, pictures=[(5, picture(seed))])
        assert answer["ids"] == alone[seed]["ids"]
        torch.testing.assert_close(answer["hidden"], alone[seed]["hidden"])
        reused.append(driven.statistics()["reused_positions"])
    # The text before the picture is shared by all; the picture only by requests with the same one.
    assert [after - before for before, after in zip([0, *reused], reused, strict=False)] == [0, 4, 16, 16]


def test_a_picture_elsewhere_or_in_another_order_is_another_prompt() -> None:
    def keys(*spans: tuple[int, int, bytes]) -> list[bytes]:
        request = ARRequest("r", OmniRequest(), [PLACEHOLDER] * 16, SamplingParams())
        request.content = [ContentSpan(*span) for span in spans]
        return BlockKeys(request, 4).first(16)

    made = [
        keys(),
        keys((0, 8, b"a"), (8, 16, b"b")),
        keys((0, 8, b"b"), (8, 16, b"a")),
        keys((0, 4, b"a"), (8, 16, b"b")),
        keys((0, 6, b"a"), (6, 16, b"b")),
        keys((0, 16, b"a")),
    ]
    assert len({each[-1] for each in made}) == len(made)
    assert made[1][:2] == made[5][:2]


def test_rotary_positions_are_part_of_a_blocks_name() -> None:
    def key(positions: torch.Tensor | None, delta: int = 0) -> list[bytes]:
        request = ARRequest("r", OmniRequest(), list(range(6)), SamplingParams(), prompt_positions=positions)
        request.position_delta = delta
        request.output_ids = [1, 2, 3]
        return BlockKeys(request, 4).first(8)

    plain = key(None)
    assert key(torch.arange(6)) == plain
    assert key(torch.arange(6) + 1)[0] != plain[0]
    assert key(None, delta=3)[0] == plain[0]
    assert key(None, delta=3)[1] != plain[1]


def test_embeddings_without_digests_are_not_shared(engine: Open) -> None:
    driven = engine(PictureRunner(named=False))
    prompt = [1, 2, 3, 4, 5, *[PLACEHOLDER] * 12, 7, 8, 9]
    answers = [
        driven.answer(str(seed), prompt, sampling=GREEDY, pictures=[(5, picture(seed))])["ids"] for seed in (1, 2)
    ]
    assert answers[0] != answers[1]
    assert driven.statistics()["reused_positions"] == driven.statistics()["shared_blocks"] == 0


def test_an_embedding_without_digest_ends_the_keyed_prefix() -> None:
    request = ARRequest("r", OmniRequest(), [1, 2, 3, 4, 5, 6, -1, 8], SamplingParams(), content=[])
    assert len(BlockKeys(request, 2).first(8)) == 3
    request.content = [ContentSpan(6, 7, b"x")]
    assert len(BlockKeys(request, 2).first(8)) == 4


def test_fed_back_outputs_get_no_key_from_their_ids(engine: Open) -> None:
    """A feedback model's next input is more than its token; its prompts are shared, its replies are not."""
    driven = engine(FeedbackRunner(MODEL))
    prompt = [5, 9, 2, 7, 1, 4, 4, 3, 2]
    first = driven.answer("first", prompt, sampling=GREEDY)["ids"]
    assert driven.statistics()["shared_blocks"] == 2
    assert driven.answer("second", prompt, sampling=GREEDY)["ids"] == first
    assert driven.statistics()["reused_positions"] == 8


def test_blocks_of_a_failed_request_are_not_found_again(engine: Open) -> None:
    driven = engine()
    stem = list(range(1, 13))
    driven.answer("good", stem, sampling=GREEDY)
    shared = driven.statistics()["shared_blocks"]
    driven.ask("bad", [*stem, *range(20, 40)], sampling=GREEDY, poison="emit")
    assert driven.collect(1)["bad"].type == "error"
    assert driven.statistics()["shared_blocks"] == shared, "it took others' blocks away, or left its own"
    assert driven.resting()


@pytest.mark.parametrize("poison", ["emit", "suppressed"])
def test_a_failing_request_leaves_the_blocks_that_others_read(engine: Open, poison: str) -> None:
    """The failing request computed the common prefix; another request reads its blocks while it fails."""
    driven = engine(chunk_size=16)
    stem = list(range(1, 41))
    everything = SamplingParams(suppressed_ids=frozenset(range(toy_model.VOCABULARY)))
    if poison == "emit":
        driven.ask("bad", [*stem, 50], sampling=GREEDY, poison="emit")
    else:  # fails at its first token, after several chunks of its prompt
        driven.ask("bad", [*stem, *range(50, 90)], sampling=everything)
    for number in range(3):
        driven.ask(f"good {number}", [*stem, 60 + number], sampling=GREEDY)
    final = driven.collect(4)
    assert final["bad"].type == "error"
    for number in range(3):
        assert final[f"good {number}"].data["ids"] == generate(MODEL, [*stem, 60 + number], GREEDY)
    assert driven.statistics()["reused_positions"] >= 40, "nothing was shared"
    assert driven.resting()


def test_blocks_of_a_failed_request_are_cleared_when_their_last_reader_has_gone() -> None:
    cache = KVCache(KVLayout(1, 1, 4, torch.float32), 4, 1, torch.device("cpu"))
    assert cache.open("bad", [], 3)
    cache.name("bad", [b"0", b"1"])
    shared = cache.pool.find([b"0", b"1"])
    assert cache.open("good", shared, 3)
    cache.keys[0].fill_(float("nan"))
    cache.release("bad", invalidate=True)
    assert cache.pool.find([b"0"]) == [], "another request would be given blocks of a failed one"
    assert cache.keys[0][shared].isnan().all(), "blocks that are read were changed"
    assert not cache.keys[0][2].isnan().any()
    cache.release("good")
    assert not cache.keys[0][shared].isnan().any()
    assert cache.pool.free == 4


def test_a_runner_that_cannot_reuse_fails_that_request_alone(engine: Open) -> None:
    driven = engine(PictureRunner())
    prompt = list(range(1, 20))
    expected = driven.answer("first", prompt, sampling=GREEDY)["ids"]
    driven.ask("bad", prompt, sampling=GREEDY, poison="reuse")
    driven.ask("good", prompt, sampling=GREEDY)
    final = driven.collect(2)
    assert final["bad"].type == "error"
    assert "reuse" in str(final["bad"].data)
    assert final["good"].data["ids"] == expected
    assert driven.resting()


def test_eviction_is_least_recently_used_and_from_the_end_of_a_chain() -> None:
    pool = BlockPool(6)
    first, second = pool.take(3), pool.take(3)
    assert first is not None
    assert second is not None
    for blocks, name in ((first, b"a"), (second, b"b")):
        for index, block in enumerate(blocks):
            pool.name(block, name + bytes([index]))
        pool.give_back(blocks)
    assert pool.free == 6
    keys = {name: [name + bytes([index]) for index in range(3)] for name in (b"a", b"b")}
    pool.share(pool.find(keys[b"a"]))  # used again: now the other chain is the older one
    pool.give_back(first)
    pool._evict(1)
    assert pool.find(keys[b"b"]) == second[:2]
    pool._evict(2)
    assert pool.find(keys[b"b"]) == []
    assert pool.find(keys[b"a"]) == first
    assert pool.evictions == 3


def test_blocks_that_nobody_uses_expire() -> None:
    pool = BlockPool(6)
    first, second = pool.take(2), pool.take(2)
    assert first is not None
    assert second is not None
    for blocks, name in ((first, b"a"), (second, b"b")):
        for index, block in enumerate(blocks):
            pool.name(block, name + bytes([index]))
    assert pool.expire(10) is None, "in use"
    pool.now = 5.0
    pool.give_back(first)
    pool.now = 8.0
    pool.give_back(second)
    pool.share(first)  # used again at 12 s
    pool.now = 12.0
    pool.give_back(first)
    assert pool.expire(10) == 6.0
    pool.now = 18.0
    assert pool.expire(10) == 4.0
    assert pool.find([b"b\0", b"b\1"]) == []
    assert pool.find([b"a\0", b"a\1"]) == first
    pool.now = 22.0
    assert pool.expire(10) is None
    assert (pool.named, pool.free, pool.evictions) == (0, 6, 4)


def _emptied(scheduler: EngineScheduler) -> threading.Event:
    """Return what is set once blocks have expired and none is left."""
    pool, done = scheduler.cache.pool, threading.Event()
    expire = pool.expire

    def noted(seconds: float) -> float | None:
        due = expire(seconds)
        if pool.evictions and not pool.named:
            done.set()
        return due

    pool.expire = noted  # type: ignore[method-assign]
    return done


def test_an_idle_engine_forgets_in_time_without_being_asked(engine: Open) -> None:
    driven = engine(prefix_cache_seconds=0.05)
    emptied = _emptied(driven.scheduler)
    answer = driven.answer("first", list(range(30)), sampling=GREEDY)["ids"]
    assert emptied.wait(10)
    assert driven.statistics()["shared_blocks"] == 0
    assert driven.answer("again", list(range(30)), sampling=GREEDY)["ids"] == answer
    assert driven.statistics()["reused_positions"] == 0


class GreedyRunner(ToyRunner):
    """Its requests can be sent to other ranks."""

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        return super().receive(evolve(message, data={**message.data, "sampling": GREEDY}))


def test_all_ranks_forget_at_the_same_place() -> None:
    options: dict[str, Any] = {"tp_size": 2, "kv_blocks": 60, "block_size": 4, "prefix_cache_seconds": 0.02}
    leader, follower = (EngineScheduler(GreedyRunner(MODEL), **options) for _ in range(2))
    leader.inbox = LeaderInbox("s", lambda message: follower.inbox.feed(message), leader.abort)  # type: ignore[attr-defined]
    follower.inbox = FollowerInbox(follower.abort)
    emptied = [_emptied(each) for each in (leader, follower)]
    with running(leader), running(follower):
        for number in range(6):
            leader.inbox.put(IncomingMessage(f"r{number}", "new_request", {"prompt": list(range(20 + number))}))
            for each in (leader, follower):
                collect(each, 1)
            if number == 3:
                assert all(each.wait(10) for each in emptied)
    counters = [each.statistics() for each in (leader, follower)]
    assert counters[0] == counters[1]
    assert counters[0]["evictions"] > 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="prefix_cache_seconds: must be above 0 and below 1e"):
        EngineScheduler(ToyRunner(MODEL), prefix_cache_seconds=seconds)


def test_a_shared_block_is_not_freed_while_it_is_read() -> None:
    cache = KVCache(KVLayout(1, 1, 4, torch.float32), 4, 1, torch.device("cpu"))
    assert cache.open("a", [], 2)
    cache.name("a", [b"0", b"1"])
    assert cache.open("b", cache.pool.find([b"0", b"1"]), 3)
    cache.release("a")
    assert cache.pool.free == 1
    assert not cache.reserve("c", 2)
    assert cache.blocks("b")[:2] == cache.pool.find([b"0", b"1"])
    cache.release("b")
    assert cache.pool.free == 4
    with pytest.raises(ValueError, match="twice"):
        cache.pool.give_back([0])


def test_a_shared_prefix_that_does_not_fit_is_released() -> None:
    cache = KVCache(KVLayout(1, 1, 4, torch.float32), 4, 1, torch.device("cpu"))
    assert cache.open("a", [], 2)
    cache.name("a", [b"0", b"1"])
    cache.release("a")
    assert not cache.open("b", cache.pool.find([b"0", b"1"]), 5)
    assert cache.pool.free == 4
    assert cache.pool.find([b"0", b"1"]) == [0, 1]


def test_sampled_answers_do_not_depend_on_what_is_cached(engine: Open) -> None:
    sampling = SamplingParams(max_new_tokens=20, temperature=1.1, top_k=20, repetition_penalty=1.2, seed=3)
    driven = engine()
    prompt = [n % 80 for n in range(50)]
    answers = [driven.answer(str(n), prompt, sampling=sampling)["ids"] for n in range(3)]
    assert answers == [generate(MODEL, prompt, sampling)] * 3


def test_the_size_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = PictureRunner()
    per_block = 4 * (2 * toy_model.LAYERS * toy_model.KV_HEADS * toy_model.WIDTH + toy_model.HIDDEN) * 4
    made = EngineScheduler(runner, block_size=4, kv_cache_mb=1, max_context=100_000)
    assert made.cache.pool.total == 2**20 // per_block
    monkeypatch.setattr("omni_torch.engine.scheduler.available_bytes", lambda device: 10 * 2**20)
    made = EngineScheduler(runner, block_size=4, kv_fraction=0.5, max_context=100_000)
    assert made.cache.pool.total == 5 * 2**20 // per_block
    with pytest.raises(ConfigError, match="kv_cache_mb and kv_fraction"):
        EngineScheduler(runner, kv_cache_mb=1, kv_fraction=0.5)
    with pytest.raises(ConfigError, match="kv_fraction"):
        EngineScheduler(runner, kv_fraction=1.5)
    with pytest.raises(ConfigError, match="chunk_size"):
        EngineScheduler(runner, chunk_size=0)


def test_the_memory_that_is_left_is_less_than_the_machine_has() -> None:
    from omni_torch.engine.memory import available_bytes

    (total,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")]
    assert 0 < available_bytes(torch.device("cpu")) < int(total.split()[1]) * 1024


def test_after_a_flush_nothing_of_before_is_reused(engine: Open) -> None:
    """Also while requests run: theirs stays, and gives the same answer."""
    driven = engine()
    prompt, others = [n % 90 for n in range(3, 300, 7)], [[n % 90 for n in range(k, 200, k)] for k in (3, 5, 9)]
    expected = driven.answer("first", prompt, sampling=GREEDY)["ids"]
    assert driven.statistics()["shared_blocks"] > 0
    for number, other in enumerate(others):
        driven.ask(f"running {number}", other, sampling=GREEDY)
    driven.scheduler.flush_caches()
    driven.ask("second", prompt, sampling=GREEDY)
    final = driven.collect(len(others) + 1)
    assert final["second"].data["ids"] == expected
    for number, other in enumerate(others):
        assert final[f"running {number}"].data["ids"] == generate(MODEL, other, GREEDY)
    assert driven.statistics()["reused_positions"] == 0
    assert driven.answer("third", prompt, sampling=GREEDY)["ids"] == expected
    assert driven.statistics()["reused_positions"] > 0
    assert driven.resting()
