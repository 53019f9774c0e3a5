"""Who is served first, who gives way, and that everybody is served some day."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import toy_model
from engine_harness import Driven
from toy_model import ToyModel, ToyRunner, generate

from omni_core.model_runner import ARRequest, KVLayout, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_engine.batching import Batcher
from omni_engine.kv_cache import KVCache
from omni_engine.scheduler import EngineScheduler

MODEL = ToyModel()
SAFE = frozenset({toy_model.POISON_TOKEN})
Open = Callable[..., Driven]


@pytest.fixture
def engine() -> Iterator[Open]:
    opened: list[Driven] = []

    def start(**options: Any) -> Driven:
        options = {"max_context": 512, "kv_blocks": 200, "block_size": 4, **options}
        opened.append(Driven(EngineScheduler(ToyRunner(MODEL), **options)))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


class Simulated:
    """A batcher whose plans are carried out without a model."""

    def __init__(self, *, blocks: int = 1000, **policy: Any) -> None:
        cache = KVCache(KVLayout(1, 1, 1, torch.float32), blocks, 1, torch.device("cpu"))
        defaults = {"max_running": 8, "max_batch_tokens": 64, "chunk_size": 16, "patience": 8, "share_prefixes": False}
        self.batcher = Batcher(cache, **{**defaults, **policy})
        self.wanted: dict[str, int] = {}
        self.count = 0

    def add(self, prompt: int, tokens: int, priority: int = 0) -> ARRequest:
        self.count += 1
        request = ARRequest(f"r{self.count}", OmniRequest(), [1] * prompt, SamplingParams(), priority=priority)
        self.wanted[request.request_id] = tokens
        self.batcher.add(request)
        return request

    def step(self) -> dict[str, int]:
        """Positions by request."""
        plan = self.batcher.plan(lambda request: True)
        self.batcher.computed(plan)
        assert sum(count for _, count in plan.work) <= self.batcher.max_batch_tokens
        assert len({request.request_id for request, _ in plan.work}) == len(plan.work)
        for request, _ in plan.work:
            assert len(self.batcher.cache.blocks(request.request_id)) >= request.computed
            if request.computed == request.length:
                request.output_ids.append(1)
                if len(request.output_ids) >= self.wanted[request.request_id]:
                    self.batcher.remove(request)
        return {request.request_id: count for request, count in plan.work}


def test_a_step_mixes_decodes_and_chunks_of_prompts() -> None:
    simulated = Simulated(max_batch_tokens=20, chunk_size=16)
    simulated.add(3, 100)
    simulated.step()
    simulated.add(40, 5)
    simulated.add(6, 5)
    assert simulated.step() == {"r1": 1, "r2": 16, "r3": 3}
    assert simulated.step() == {"r1": 1, "r2": 16, "r3": 3}
    assert simulated.step() == {"r1": 1, "r2": 8, "r3": 1}


def test_more_decodes_than_fit_into_a_step_take_turns() -> None:
    simulated = Simulated(max_batch_tokens=3)
    for _ in range(8):
        simulated.add(1, 1000)
    while len(simulated.batcher.running) < 8:
        simulated.step()
    for _ in range(16):
        simulated.step()
    served = dict.fromkeys(simulated.wanted, 0)
    for _ in range(80):
        for name in simulated.step():
            served[name] += 1
    assert set(served.values()) == {30}


def test_a_prompt_is_not_starved_by_decodes_that_fill_every_step() -> None:
    simulated = Simulated(max_batch_tokens=2, patience=8)
    for _ in range(4):
        simulated.add(1, 10_000)
    while len(simulated.batcher.running) < 4:
        simulated.step()
    late = simulated.add(6, 2)
    steps = next(step for step in range(200) if simulated.step() and late.computed == 6)
    assert steps < 80


def test_the_higher_priority_goes_first_then_the_older() -> None:
    simulated = Simulated(max_running=1)
    names = [simulated.add(4, 3, priority).request_id for priority in (0, 0, 5, -1, 5)]
    order: list[str] = []
    while simulated.batcher.waiting or simulated.batcher.running:
        order += [name for name in simulated.step() if name not in order]
    assert order == [names[index] for index in (2, 4, 0, 1, 3)]


def test_a_waiting_request_of_higher_priority_takes_the_place_of_a_lower_one() -> None:
    simulated = Simulated(max_running=2)
    low, middle = simulated.add(4, 50, -1), simulated.add(4, 50, 0)
    simulated.step()
    high = simulated.add(4, 3, 1)
    assert set(simulated.step()) == {high.request_id, middle.request_id}
    assert simulated.batcher.waiting == [low]
    for _ in range(3):
        simulated.step()
    assert simulated.batcher.running == [middle, low]


def test_a_long_prompt_of_low_priority_leaves_the_step_to_the_higher_one() -> None:
    simulated = Simulated(max_batch_tokens=16, chunk_size=16)
    simulated.add(500, 1, -1)
    simulated.step()
    high = simulated.add(20, 2, 0)
    assert simulated.step() == {high.request_id: 16}
    assert simulated.step() == {high.request_id: 4, "r1": 12}


def test_nobody_gives_way_where_it_would_not_help() -> None:
    """The room that the lower ones hold is not enough: they keep it."""
    simulated = Simulated(blocks=20)
    simulated.add(12, 50, 5)
    simulated.add(4, 2, -1)
    simulated.step()
    simulated.add(10, 2, 1)
    simulated.step()
    assert simulated.batcher.preemptions == 0


def test_patience_wins_over_a_stream_of_higher_priorities() -> None:
    simulated = Simulated(max_running=1, patience=4)
    low = simulated.add(3, 3, 0)
    simulated.wanted[low.request_id] = 20
    for step in range(400):
        if step % 3 == 0:
            simulated.add(2, 3, 3)
        simulated.step()
        if low.request_id not in {r.request_id for r in simulated.batcher.running + simulated.batcher.waiting}:
            break
    assert len(low.output_ids) == 20, "the low one never got through"
    assert step < 200


@pytest.mark.parametrize("seed", range(15))
def test_everybody_ends_whatever_comes(seed: int) -> None:
    """Random load, tight cache: each request ends, and within the work that is ahead of it."""
    chance = random.Random(seed)
    simulated = Simulated(
        blocks=chance.choice([30, 45, 80]),
        max_running=chance.choice([2, 5]),
        max_batch_tokens=chance.choice([3, 10, 40]),
        chunk_size=chance.choice([2, 7, 30]),
        patience=chance.choice([2, 20]),
    )
    for step in range(6000):
        if step < 300 and chance.random() < 0.2:
            simulated.add(chance.randint(1, 20), chance.randint(1, 10), chance.choice([0, 0, 0, 3, -2]))
        simulated.step()
        if step > 300 and not simulated.batcher.running and not simulated.batcher.waiting:
            break
    assert not simulated.batcher.waiting
    assert not simulated.batcher.running
    assert simulated.batcher.cache.pool.free == simulated.batcher.cache.pool.total


@pytest.mark.parametrize("seed", range(10))
def test_priorities_and_preemption_change_no_answer(engine: Open, seed: int) -> None:
    chance = random.Random(seed)
    jobs = [
        (
            [chance.randrange(90) for _ in range(chance.choice([2, 10, 30]))],
            SamplingParams(max_new_tokens=chance.choice([4, 30]), temperature=0.8, seed=index, suppressed_ids=SAFE),
        )
        for index in range(10)
    ]
    driven = engine(kv_blocks=20, max_running=3, chunk_size=8, max_batch_tokens=chance.choice([9, 40]), patience=5)
    for index, (prompt, sampling) in enumerate(jobs):
        driven.ask(str(index), prompt, sampling=sampling, priority=chance.choice([0, 2, -3]))
    final = driven.collect(len(jobs))
    assert [final[str(index)].data["ids"] for index in range(len(jobs))] == [generate(MODEL, *job) for job in jobs]
    assert driven.resting()


def test_clients_say_the_priority_in_their_metadata(engine: Open) -> None:
    driven = engine(max_running=1)
    long = SamplingParams(max_new_tokens=300, suppressed_ids=SAFE)
    driven.ask("first", [1], sampling=long)
    for name, priority in (("later", -2), ("sooner", 3)):
        driven.ask(name, [2], sampling=SamplingParams(max_new_tokens=2), priority=priority)
    assert list(driven.collect(3)) == ["sooner", "first", "later"]
    for bad in (1.5, True, "high", 10**6):
        driven.ask("bad", [1], sampling=long, priority=bad)  # type: ignore[arg-type]
        error = driven.collect(1)["bad"]
        assert error.type == "error"
        assert "metadata.priority" in str(error.data)


def test_what_may_outgrow_the_cache_is_refused_at_the_door(engine: Open) -> None:
    driven = engine(kv_blocks=5)
    fits = SamplingParams(max_new_tokens=11, suppressed_ids=SAFE)
    prompt = list(range(10))
    assert driven.answer("fits", prompt, sampling=fits)["ids"] == generate(MODEL, prompt, fits)
    driven.ask("too much", prompt, sampling=SamplingParams(max_new_tokens=12))
    error = driven.collect(1)["too much"]
    assert error.type == "error"
    assert "may grow to 21" in str(error.data)
    assert "holds 20" in str(error.data)
    assert "max_new_tokens" in str(error.data)
    assert driven.statistics()["tokens"] == 11, "it was computed before it was refused"
