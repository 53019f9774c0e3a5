"""Priorities and preemption in a running engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import toy_model
from asking import ids_of
from engine_harness import Driven
from tiers import few
from toy_model import FeedbackRunner, ToyModel, generate

from omni_core.errors import ConfigError
from omni_core.model_runner import SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage
from omni_torch.engine.scheduler import EngineScheduler

MODEL = ToyModel()
SAFE = frozenset({toy_model.POISON_TOKEN})
Open = Callable[..., Driven]


@pytest.mark.parametrize("policy", [None, "omni_torch.vocoder.deadlines:Deadlines"])
@pytest.mark.parametrize("seed", few(range(10), 4))
def test_priorities_and_preemption_change_no_answer(engine: Open, seed: int, policy: str | None) -> None:
    chance = random.Random(seed)
    jobs = [
        (
            [chance.randrange(90) for _ in range(chance.choice([2, 10, 30]))],
            SamplingParams(max_new_tokens=chance.choice([4, 30]), temperature=0.8, seed=index, suppressed_ids=SAFE),
        )
        for index in range(10)
    ]
    tokens = chance.choice([9, 40])
    order: dict[str, Any] = {"patience": 5} if policy is None else {"policy": policy}
    driven = engine(kv_blocks=20, max_running=3, chunk_size=8, max_batch_tokens=tokens, **order)
    for index, (prompt, sampling) in enumerate(jobs):
        driven.ask(str(index), prompt, sampling=sampling, priority=chance.choice([0, 2, -3]))
    assert ids_of(driven.collect(len(jobs)), len(jobs)) == [generate(MODEL, *job) for job in jobs]
    assert driven.resting()


def test_a_request_that_waited_for_its_stream_is_not_failed_by_one_of_higher_priority() -> None:
    """The waiting one is ready again in the step in which the other arrives; its rank is lower, its urgency is not."""
    patience = 4
    engine = EngineScheduler(FeedbackRunner(MODEL), max_context=512, kv_blocks=200, max_running=2, patience=patience)
    sampling = SamplingParams(max_new_tokens=6, suppressed_ids=SAFE)
    endless = SamplingParams(max_new_tokens=100, suppressed_ids=SAFE)

    def ask(name: str, priority: int = 0, **data: Any) -> None:
        request = OmniRequest(metadata={"priority": priority})
        engine.inbox.put(IncomingMessage(name, "new_request", {"prompt": [3, 4, 5], **data}, None, None, request))

    with torch.inference_mode():
        ask("filler", sampling=endless)
        ask("streamed", sampling=sampling, allowed=2)
        for _ in range(4 * patience):
            assert engine.loop.turn()
        ask("urgent", 1, sampling=sampling)
        engine.inbox.put(IncomingMessage("streamed", "stream_chunk", 100))
        for _ in range(150):
            if engine.batcher.running or len(engine.inbox):
                assert engine.loop.turn()
    final = {}
    while (message := engine.outbox.get(0.0)) is not None:
        if message.type != "stream":
            final[message.request_id] = message
    assert {name: each.type for name, each in final.items()} == dict.fromkeys(
        ["streamed", "filler", "urgent"], "result"
    )
    assert final["streamed"].data == final["urgent"].data
    assert engine.batcher.preemptions >= 1


def test_the_priority_is_read_from_the_metadata(engine: Open) -> None:
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


def test_a_request_that_may_outgrow_the_cache_is_refused_at_admission(engine: Open) -> None:
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


def test_patience_counts_steps_so_a_policy_refuses_it() -> None:
    with pytest.raises(ConfigError, match=r"patience: counts steps.*rises after 30 s without service"):
        EngineScheduler(
            FeedbackRunner(MODEL), kv_blocks=20, patience=5, policy="omni_torch.vocoder.deadlines:Deadlines"
        )
