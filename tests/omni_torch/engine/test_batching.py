"""The batching policy alone: no model, no thread, no clock; a step is a call."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiers import few

from omni_core.model_runner.types import ARRequest, KVLayout, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_torch.engine.batching import Batcher
from omni_torch.engine.kv_cache import KVCache


class Simulated:
    """A batcher whose plans are carried out without a model: every step yields a token of each request that is fully computed."""

    def __init__(self, *, blocks: int = 1000, **policy: Any) -> None:
        cache = KVCache(KVLayout(1, 1, 1, torch.float32), blocks, 1, torch.device("cpu"))
        defaults = {"max_running": 8, "max_batch_tokens": 64, "chunk_size": 16, "patience": 8, "share_prefixes": False}
        self.batcher = Batcher(cache, **{**defaults, **policy})
        self.wanted: dict[str, int] = {}
        self.blocked: set[str] = set()
        """Requests that wait for input of their own."""
        self.count = 0

    def add(self, prompt: int, tokens: int, priority: int = 0) -> ARRequest:
        self.count += 1
        request = ARRequest(f"r{self.count}", OmniRequest(), [1] * prompt, SamplingParams(), priority=priority)
        self.wanted[request.request_id] = tokens
        self.batcher.add(request)
        return request

    def step(self) -> dict[str, int]:
        """Plan a step, carry it out, and return its positions by request."""
        plan = self.batcher.plan(lambda request: request.request_id not in self.blocked)
        assert all(request in self.batcher.running for request, _ in plan.work), "planned and preempted in one step"
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


def test_a_prompt_without_other_requests_is_computed_in_longer_chunks() -> None:
    simulated = Simulated(max_batch_tokens=64, chunk_size=8, chunk_alone=20)
    first = simulated.add(60, 3)
    assert simulated.step() == {"r1": 20}
    simulated.add(30, 1)  # another one waits, and then both run
    assert simulated.step() == {"r1": 8, "r2": 8}
    simulated.batcher.remove(first)
    assert simulated.step() == {"r2": 20}
    assert simulated.step() == {"r2": 2}


def test_a_chunk_alone_is_within_the_budget_and_no_less_than_others() -> None:
    simulated = Simulated(max_batch_tokens=16, chunk_size=8, chunk_alone=20)
    simulated.add(60, 1)
    assert simulated.step() == {"r1": 16}
    simulated = Simulated(max_batch_tokens=64, chunk_size=30, chunk_alone=20)
    simulated.add(60, 1)
    assert simulated.step() == {"r1": 30}


def test_more_decodes_than_fit_into_a_step_are_served_in_turn() -> None:
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


def test_no_request_is_preempted_if_that_makes_too_little_room() -> None:
    """The blocks of the lower ones are too few, so they keep them."""
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


@pytest.mark.parametrize("seed", few(range(15), 4))
def test_every_request_ends_under_random_load(seed: int) -> None:
    """Random load, tight cache: each request ends after at most the work that is ahead of it."""
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


def test_a_request_that_is_planned_is_not_preempted_in_the_same_step() -> None:
    """A talker waits longer than ``patience`` for its stream; it is ready again when a request of higher priority arrives."""
    simulated = Simulated(max_running=2, patience=4)
    filler, talker = simulated.add(4, 200), simulated.add(4, 20)
    simulated.step()
    simulated.blocked = {talker.request_id}
    for _ in range(9):
        assert simulated.step() == {filler.request_id: 1}
    simulated.blocked = set()
    high = simulated.add(4, 3, 1)
    # The talker's urgency has grown to that of the newcomer, so it is served; the filler makes room.
    assert simulated.step() == {talker.request_id: 1, high.request_id: 4}
    assert simulated.batcher.waiting == [filler]
    assert len(talker.output_ids) == 2


def test_a_request_served_for_its_patience_can_be_preempted_in_the_next_step() -> None:
    simulated = Simulated(max_running=1, patience=4)
    low = simulated.add(4, 50)
    simulated.step()
    simulated.batcher._step += 8  # steps of a larger running set
    high = simulated.add(4, 1, 1)
    assert simulated.step() == {low.request_id: 1}
    assert simulated.step() == {high.request_id: 4}


def test_a_request_that_waits_for_its_stream_does_not_hold_up_others() -> None:
    simulated = Simulated(max_running=1)
    first = simulated.add(4, 9)
    simulated.step()
    simulated.batcher.preempt(first)
    first.computed = 0
    simulated.blocked = {first.request_id}
    other = simulated.add(20, 1)
    assert simulated.step() == {other.request_id: 16}, "the recomputed prompt needs its stream for its last position"
    assert simulated.step() == {other.request_id: 4}
    simulated.blocked = set()
    assert simulated.step() == {first.request_id: 5}


def test_each_decode_is_asked_once_a_step_whether_it_can_go_on() -> None:
    simulated, asked = Simulated(max_batch_tokens=2), list[str]()

    def can_step(request: ARRequest) -> bool:
        asked.append(request.request_id)
        return True

    for _ in range(3):
        simulated.add(1, 100)
    while any(not each.output_ids for each in (*simulated.batcher.running, *simulated.batcher.waiting)):
        simulated.step()
    plan = simulated.batcher.plan(can_step)
    assert sorted(asked) == ["r1", "r2", "r3"]
    assert [count for _, count in plan.work] == [1, 1]


def test_one_that_is_removed_as_it_is_asked_is_not_planned() -> None:
    simulated = Simulated()
    gone, kept = simulated.add(1, 100), simulated.add(1, 100)
    simulated.step()

    def can_step(request: ARRequest) -> bool:
        if request is gone:
            simulated.batcher.remove(request)
        return request is not gone

    assert simulated.batcher.plan(can_step).work == [(kept, 1)]
    assert simulated.batcher.running == [kept]


def test_a_full_cache_preempts_the_newest_and_computes_it_again() -> None:
    simulated = Simulated(blocks=12)
    old, new = simulated.add(4, 6), simulated.add(4, 6)
    while not simulated.batcher.preemptions:
        simulated.step()
    assert simulated.batcher.waiting == [new]
    assert new.computed == 0
    while simulated.batcher.running or simulated.batcher.waiting:
        simulated.step()
    assert len(old.output_ids) == len(new.output_ids) == 6


def test_removal_is_idempotent_and_releases_everything() -> None:
    simulated = Simulated(blocks=12)
    requests = [simulated.add(4, 6) for _ in range(3)]
    simulated.step()
    for request in requests * 2:
        simulated.batcher.remove(request, invalidate=True)
    assert simulated.batcher.cache.pool.free == 12
    assert not simulated.batcher.plan(lambda request: True).work


def test_chunks_cut_no_block() -> None:
    """A chunk is shorter where a block would be cut, and longer where the block is; one block may lie around others."""
    for blocks, chunks in [
        ([-1] * 5 + [0] * 8 + [-1] * 12, [5, 10, 10]),
        ([0] * 25, [25]),
        ([0, 0, -1, 1, 1, 0, 2, 2, -1, -1, 2, -1, 3, 3, -1], [6, 9]),
    ]:
        simulated = Simulated(max_batch_tokens=30, chunk_size=10, chunk_alone=0)
        request = simulated.add(len(blocks), 1)
        request.prompt_blocks = torch.tensor(blocks)
        found = []
        while request.computed < len(blocks):
            found += simulated.step().values()
        assert found == chunks
