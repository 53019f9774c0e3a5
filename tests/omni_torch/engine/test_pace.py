"""The batcher with deadlines: late decodes go before prompts, full batches leave out who has time, and nothing starves."""

from __future__ import annotations

import math
import random
import threading
import time

import torch
from asking import collect
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st
from toy_model import POISON_TOKEN, ToyModel, ToyRunner

from omni_core.model_runner import Forward, ForwardBatch
from omni_core.model_runner.types import ARRequest, KVLayout, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage
from omni_torch.engine.batching import Batcher
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.pace import Pace
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.processes.ranks import FollowerInbox, LeaderInbox
from omni_torch.vocoder.deadlines import Deadlines

SECONDS = 0.08


@define
class Timed:
    """A batcher whose steps take simulated time: so much each, per decode and per position of a prompt."""

    step_seconds: float
    decode_seconds: float
    position_seconds: float
    blocks: int = 1000
    max_running: int = 8
    now: float = 0.0
    count: int = 0
    wanted: dict[str, int] = field(factory=dict)
    ended: dict[str, float] = field(factory=dict)
    batcher: Batcher = field(init=False)
    pace: Pace = field(init=False)

    def __attrs_post_init__(self) -> None:
        cache = KVCache(KVLayout(1, 1, 1, torch.float32), self.blocks, 1, torch.device("cpu"))
        self.pace = Pace(Deadlines(), SECONDS)
        self.batcher = Batcher(cache, self.max_running, 64, 32, share_prefixes=False, pace=self.pace)

    def add(self, prompt: int, tokens: int, priority: int = 0, **metadata: float) -> str:
        self.count += 1
        given = OmniRequest(metadata=metadata)
        request = ARRequest(f"r{self.count}", given, [1] * prompt, SamplingParams(), priority=priority)
        self.wanted[request.request_id] = tokens
        self.pace.policy.begin(request.request_id, given, self.now)
        self.batcher.add(request, self.now)
        return request.request_id

    def step(self) -> dict[str, int]:
        """Plan a step and carry it out; return its positions by request."""
        plan = self.batcher.plan(lambda request: True, self.now)
        decodes = sum(bool(each.output_ids) and count == 1 for each, count in plan.work)
        positions = sum(count for _, count in plan.work) - decodes
        took = self.step_seconds + self.decode_seconds * decodes + self.position_seconds * positions
        self.now += took
        self.batcher.computed(plan)
        self.pace.computed(decodes, positions, took)
        for request, _ in plan.work:
            if request.computed == request.length:
                request.output_ids.append(1)
                self.pace.emitted(request.request_id, self.now)
                if len(request.output_ids) >= self.wanted[request.request_id]:
                    self.batcher.remove(request)
                    self.pace.policy.end(request.request_id)
                    self.ended[request.request_id] = self.now
        return {request.request_id: count for request, count in plan.work}

    def finish(self, most: int) -> None:
        """Make steps until all have ended."""
        for _ in range(most):
            if not self.batcher.running and not self.batcher.waiting:
                break
            assert self.step(), "there is work, and the plan is empty"
        assert set(self.ended) == set(self.wanted)


def test_a_prompt_takes_the_time_that_decodes_can_spare() -> None:
    engine = Timed(0.01, 0.001, 0.004)
    first = engine.add(8, 200)
    for _ in range(30):
        engine.step()
    engine.now = engine.pace.policy.due(first, engine.now) - 0.05  # a pause of the machine
    engine.add(64, 5)
    assert engine.step() == {first: 1}, "16 positions would make the first one late"
    while (work := engine.step()) == {first: 1}:
        assert engine.pace.policy.due(first, engine.now) < engine.now + 1.0, "it has time now"
    assert 16 <= work["r2"] < 32
    assert engine.pace.policy.due(first, engine.now) > engine.now


def test_nobody_is_held_back_where_that_helps_nobody() -> None:
    """A step takes longer than its output is played, however few requests it holds: all share it."""
    engine = Timed(0.2, 0.0001, 0.0)
    engine.add(4, 50)
    for _ in range(3):
        engine.step()
    engine.add(32, 5)
    assert set(engine.step()) == {"r1", "r2"}


def test_a_full_engine_queues_a_request_that_would_make_all_late() -> None:
    engine = Timed(0.0001, 0.02, 0.0001)
    for _ in range(6):
        engine.add(4, 40)
        for _ in range(3):
            engine.step()
    assert len(engine.batcher.running) == 3, "four take 80 ms, which is an output's time"
    assert len(engine.batcher.waiting) == 3
    engine.finish(1000)
    assert list(engine.ended)[:3] == ["r1", "r2", "r3"]


def test_who_has_time_is_left_out_while_another_is_late() -> None:
    engine = Timed(0.0001, 0.01, 0.0001)
    ahead = engine.add(4, 100)
    while engine.pace.policy.due(ahead, engine.now) < engine.now + 1.5:
        engine.step()
    behind = engine.add(4, 100)
    while engine.pace.policy.may_wait(behind, engine.now):
        engine.step()
    engine.now = engine.pace.policy.due(behind, engine.now) + 0.01
    assert engine.step() == {behind: 1}


def test_text_goes_on_beside_speech_and_by_its_deadline() -> None:
    engine = Timed(0.001, 0.012, 0.0002)
    for _ in range(5):
        engine.add(4, 60)
    patient, hurried = engine.add(4, 20, deadline=20.0), engine.add(4, 20, deadline=1.0)
    engine.finish(2000)
    assert engine.ended[hurried] < engine.ended[patient]


def test_a_low_priority_rises_with_time() -> None:
    engine = Timed(0.01, 0.001, 0.001, max_running=1)
    low = engine.add(4, 3, -1)
    for number in range(10_000):
        if number % 3 == 0:
            engine.add(4, 3)
        engine.step()
        if low in engine.ended:
            break
    assert engine.ended[low] < 40


REQUEST = st.tuples(st.integers(1, 40), st.integers(1, 12), st.sampled_from([0, 0, 0, 2, -3]), st.integers(0, 5))


@given(
    st.lists(REQUEST, min_size=1, max_size=16),
    st.tuples(*[st.sampled_from([0.0, 0.0002, 0.02, 0.3])] * 3),
    st.sampled_from([54, 70, 1000]),
    st.sampled_from([1, 3, 16]),
)
def test_every_request_ends(
    requests: list[tuple[int, int, int, int]], costs: tuple[float, float, float], blocks: int, running: int
) -> None:
    """Whatever steps cost, with a tight cache, preemptions and priorities; and no plan is empty while there is work."""
    engine = Timed(*costs, blocks=blocks, max_running=running)
    for prompt, tokens, priority, steps in requests:
        engine.add(prompt, tokens, priority)
        for _ in range(steps):
            engine.step()
    engine.finish(5000)
    assert engine.batcher.cache.pool.free == engine.batcher.cache.pool.total


def test_a_pace_that_knows_nothing_yet_holds_nobody_back() -> None:
    pace = Pace(Deadlines(), SECONDS)
    pace.policy.begin("r", OmniRequest(), 0.0)
    assert pace.limit([], 0.0) == []
    assert pace.spared == math.inf
    assert pace.spare("r", 500, 0.0, begins=True) == 500


class SlowRunner(ToyRunner):
    """Each step takes longer, by so many milliseconds at random, than it would."""

    def __init__(self, seed: int, milliseconds: float) -> None:
        super().__init__(ToyModel())
        self.output_seconds = 0.002
        self._random, self._milliseconds = random.Random(seed), milliseconds
        self.batches: list[tuple[list[str], int]] = []

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        sampling = SamplingParams(max_new_tokens=message.data["new"], suppressed_ids=frozenset([POISON_TOKEN]))
        return super().receive(evolve(message, data={"prompt": message.data["prompt"], "sampling": sampling}))

    def execute(self, batch: ForwardBatch, forward: Forward | None = None) -> list[tuple[ARRequest, int]]:
        self.batches.append(([each.request_id for each in batch.requests], len(batch.positions)))
        time.sleep(self._milliseconds * self._random.random() / 1000)
        return super().execute(batch, forward)


def test_ranks_decide_by_the_time_of_rank_0() -> None:
    """Two ranks of which one is much slower plan the same steps, and learn the same from them."""
    runners, ranks = [SlowRunner(0, 1), SlowRunner(1, 9)], list[EngineScheduler]()
    for runner in runners:
        options = {"tp_size": 2, "kv_blocks": 60, "chunk_size": 16, "max_running": 5}
        ranks.append(EngineScheduler(runner, **options, policy="omni_torch.vocoder.deadlines:Deadlines"))  # type: ignore[arg-type]
    leader, follower = ranks
    leader.inbox = LeaderInbox("s", lambda message: follower.inbox.feed(message), leader.abort)  # type: ignore[attr-defined]
    follower.inbox = FollowerInbox(follower.abort)
    threads = [threading.Thread(target=each.start, daemon=True) for each in ranks]
    for thread in threads:
        thread.start()
    chosen = random.Random(5)
    for number in range(24):
        request = OmniRequest(metadata={"first_within": chosen.choice([0.01, 0.1, 0.5])})
        data = {"prompt": [1 + number] * chosen.randint(2, 70), "new": chosen.randint(1, 25)}
        leader.inbox.put(IncomingMessage(f"r{number}", "new_request", data, request=request))
        time.sleep(0.01 * chosen.random())
    for engine in ranks:
        assert all(each.type == "result" for each in collect(engine, 24).values())
    end = time.monotonic() + 5
    while any(engine._unlearnt for engine in ranks):  # the last step is learnt from at the look after it
        assert time.monotonic() < end
        time.sleep(0.01)
    leader.stop()
    follower.stop()
    for thread in threads:
        thread.join(5)
    assert len(runners[0].batches) > 50
    assert runners[0].batches == runners[1].batches
    first, second = (engine._pace for engine in ranks)
    assert first is not None
    assert second is not None
    assert first._cost.coefficients() == second._cost.coefficients()
    assert first._cost.seconds(1, 0) > 0
