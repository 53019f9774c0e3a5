"""The scheduler conformance suite for the engine, on a model of one layer. Imported by tests only: it needs pytest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import evolve

from omni_core.api import (
    ARRequest,
    ForwardBatch,
    ForwardOutput,
    IncomingMessage,
    KVLayout,
    OutgoingMessage,
    RandomStream,
    SamplingParams,
    Scheduler,
)
from omni_testing import SchedulerConformance
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.runners.model_runner import ARModelRunner

_VOCABULARY, _HEADS, _WIDTH = 61, 2, 16
_HIDDEN = _HEADS * _WIDTH
_POISON = 60


class _Model:
    """One layer of attention over random embeddings. An ``ARModel``."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._table = torch.randn(_VOCABULARY, _HIDDEN, generator=generator)
        self._mix = torch.randn(_HIDDEN, 3 * _HIDDEN, generator=generator) / _HIDDEN**0.5
        self.hidden_size, self.vocab_size = _HIDDEN, _VOCABULARY
        self.kv_layout = KVLayout(1, _HEADS, _WIDTH, torch.float32)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self._table[ids]

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        if (batch.input_ids == _POISON).any():
            raise FloatingPointError("a poisoned prompt")
        assert batch.input_embeds is not None
        x = batch.input_embeds + batch.positions.unsqueeze(-1).mul(0.1).sin()
        query, key, value = (x @ self._mix).view(-1, 3, _HEADS, _WIDTH).unbind(1)
        return ForwardOutput(x + batch.attention(0, query, key, value).reshape(-1, _HIDDEN))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._table.T


class _Runner(ARModelRunner):
    """Requests are ``prompt`` and ``max_new_tokens``; every token is streamed."""

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        data = message.data.data
        drawn = SamplingParams(temperature=1.0, seed=data["prompt"][0], suppressed_ids=frozenset({_POISON}))
        sampling = evolve(drawn, max_new_tokens=data["max_new_tokens"])
        random = RandomStream(sampling.seed)
        return ARRequest(message.request_id, message.data.request, data["prompt"], sampling, random=random)

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        yield OutgoingMessage(request.request_id, "stream", token_id)

    def result(self, request: ARRequest) -> list[int]:
        return list(request.output_ids)


class EngineConformance(SchedulerConformance):
    """The engine with prompts of several lengths, sampled with each request's own seed."""

    def make(self) -> Scheduler:
        return EngineScheduler(_Runner(_Model()), max_context=4096, kv_blocks=400)

    def good(self, number: int) -> Any:
        return {"prompt": [1 + number, *range(2, 5 + number)], "max_new_tokens": 12}

    def bad(self) -> Any:
        return {"prompt": [1, _POISON, 2], "max_new_tokens": 12}

    def endless(self) -> Any:
        return {"prompt": [5, 6, 7], "max_new_tokens": 4000}
