"""Requests for autoregressive schedulers of either kind, and helpers to read their answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from running import running
from toy_model import FeedbackRunner, ToyModel, generate

from omni_core.model_runner import SamplingParams
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage, Scheduler
from omni_torch.engine.scheduler import EngineScheduler

PROMPTS = [[3], [5, 9, 2, 7], list(range(1, 40)), [11] * 70, [4, 8], list(range(90, 20, -3)), [1, 2, 3], [60] * 17]
SAMPLINGS = [
    SamplingParams(max_new_tokens=12),
    SamplingParams(max_new_tokens=20, temperature=0.8, seed=1),
    SamplingParams(max_new_tokens=7, temperature=1.2, top_k=5, seed=2),
    SamplingParams(max_new_tokens=15, temperature=0.9, top_p=0.7, repetition_penalty=1.3, seed=3),
    SamplingParams(max_new_tokens=30, stop_ids=frozenset(range(0, 97, 9))),
    SamplingParams(max_new_tokens=9, suppressed_ids=frozenset(range(50))),
    SamplingParams(max_new_tokens=11, temperature=1.0, min_p=0.1, seed=4),
    SamplingParams(max_new_tokens=1),
]
JOBS = list(zip(PROMPTS, SAMPLINGS, strict=True))


def ask(scheduler: Scheduler, name: str, prompt: list[int], **data: Any) -> None:
    data.setdefault("sampling", SamplingParams(max_new_tokens=12))
    scheduler.inbox.put(IncomingMessage(name, "new_request", {"prompt": prompt, **data}))


def collect(
    scheduler: Scheduler, count: int, seconds: float = 30.0, streamed: list[OutgoingMessage] | None = None
) -> dict[str, OutgoingMessage]:
    """The final messages of ``count`` requests, in the order in which they came; ``streamed`` gets the others."""
    final: dict[str, OutgoingMessage] = {}
    end = time.monotonic() + seconds
    while len(final) < count:
        message = scheduler.outbox.get(max(0.0, end - time.monotonic()))
        assert message is not None, f"only {sorted(final)} finished"
        if message.type != "stream":
            assert message.request_id not in final, "answered twice"
            final[message.request_id] = message
        elif streamed is not None:
            streamed.append(message)
    return final


def ids_of(final: dict[str, OutgoingMessage], count: int) -> list[list[int]]:
    for name, message in final.items():
        assert message.type == "result", f"{name}: {message.data!r}"
    return [final[str(index)].data["ids"] for index in range(count)]


def ids_together(
    scheduler: Scheduler, jobs: Sequence[tuple[list[int], SamplingParams]], seconds: float = 30.0
) -> list[list[int]]:
    """The ids of requests that are asked for at once."""
    for index, (prompt, sampling) in enumerate(jobs):
        ask(scheduler, str(index), prompt, sampling=sampling)
    return ids_of(collect(scheduler, len(jobs), seconds), len(jobs))


def resting(scheduler: EngineScheduler) -> bool:
    """Return True if everything is released within a second."""
    for _ in range(100):
        state = scheduler.statistics()
        if state["free_blocks"] == state["total_blocks"] and not state["running"] + state["waiting"] + state["pending"]:
            return True
        time.sleep(0.01)
    return False


def feedback_alone(model: ToyModel, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """The ids of a request whose outputs are fed back, alone in an engine of its own."""
    engine = EngineScheduler(FeedbackRunner(model), max_context=512, kv_blocks=200)
    with running(engine):
        return ids_together(engine, [(prompt, sampling)])[0]


MODEL = ToyModel()
EXPECTED = [generate(MODEL, prompt, sampling) for prompt, sampling in JOBS]
