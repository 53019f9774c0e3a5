"""A small decoder with grouped-query attention, its runner, and a plain loop that generates with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F

from omni_core.errors import InvalidRequestError
from omni_core.model_runner import (
    ARModel,
    ARRequest,
    FeedbackStrategy,
    ForwardBatch,
    ForwardOutput,
    KVLayout,
    RandomStream,
    SamplingParams,
)
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_torch.runners.model_runner import ARModelRunner, FeedbackARModelRunner
from omni_torch.sampling.sample import sample

VOCABULARY, HIDDEN, HEADS, KV_HEADS, WIDTH, LAYERS = 97, 32, 4, 2, 8, 2
POISON_TOKEN = 96


class ToyModel:
    """Attention and a residual per layer; positions enter as a sinusoid. Wide logit margins."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

        self.table = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        self.layers = [
            (drawn(HEADS * WIDTH, HIDDEN), drawn(2 * KV_HEADS * WIDTH, HIDDEN), drawn(HIDDEN, HEADS * WIDTH))
            for _ in range(LAYERS)
        ]
        self.head = 3 * drawn(VOCABULARY, HIDDEN)
        self.hidden_size, self.vocab_size = HIDDEN, VOCABULARY
        self.kv_layout = KVLayout(LAYERS, KV_HEADS, WIDTH, torch.float32)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table[ids]

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        if (batch.input_ids == POISON_TOKEN).any():
            raise FloatingPointError("a poisoned batch")
        assert batch.input_embeds is not None
        return ForwardOutput(self.run(batch.input_embeds, batch.positions, batch.attention))

    def run(self, x: torch.Tensor, positions: torch.Tensor, attention: Any) -> torch.Tensor:
        angle = positions.float().unsqueeze(-1) * torch.arange(1, HIDDEN + 1, device=x.device) * 0.1
        x = x + angle.sin()
        for index, (q, kv, o) in enumerate(self.layers):
            normed = F.layer_norm(x, (HIDDEN,))
            query = (normed @ q.T).view(-1, HEADS, WIDTH)
            key, value = (normed @ kv.T).view(-1, 2 * KV_HEADS, WIDTH).split(KV_HEADS, dim=1)
            x = x + attention(index, query, key, value).reshape(len(x), -1) @ o.T
        return F.layer_norm(x, (HIDDEN,))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.head.T


def full_attention(
    layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Plain causal attention over a whole sequence."""
    repeat = query.shape[1] // key.shape[1]
    k, v = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    scores = torch.einsum("qhd,khd->hqk", query, k) * WIDTH**-0.5
    scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def generate(
    model: ToyModel, prompt: list[int], sampling: SamplingParams, attention: Any = full_attention
) -> list[int]:
    """Token by token, everything recomputed each time."""
    request = ARRequest("reference", None, prompt, sampling, random=RandomStream(sampling.seed))  # type: ignore[arg-type]
    while len(request.output_ids) < sampling.max_new_tokens:
        ids = torch.tensor(prompt + request.output_ids)
        hidden = model.run(model.embed(ids), torch.arange(len(ids)), attention)
        (token,) = sample(model.compute_logits(hidden[-1:]), [request])
        request.output_ids.append(token)
        if token in sampling.stop_ids:
            break
    return request.output_ids


class ToyRunner(ARModelRunner):
    """Requests bring ``prompt`` and ``sampling``; ``poison`` makes one of the per-request methods raise."""

    def __init__(self, model: ARModel) -> None:
        super().__init__(model)
        self.released: list[str] = []

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type != "new_request":
            return None
        data = message.data
        if data.get("poison") == "receive":
            raise InvalidRequestError("bad from the start")
        sampling: SamplingParams = data["sampling"]
        return ARRequest(
            message.request_id,
            message.request,
            data["prompt"],
            sampling,
            state=data,
            random=RandomStream(sampling.seed),
        )

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        if request.state.get("poison") == "emit" and len(request.output_ids) == 3:
            raise SystemExit(7)
        yield OutgoingMessage(request.request_id, "stream", token_id)

    def result(self, request: ARRequest) -> dict[str, Any]:
        if request.state.get("poison") == "result":
            raise MemoryError("at the end")
        return {"ids": list(request.output_ids), "reason": request.finish_reason}

    def release(self, request_id: str) -> None:
        self.released.append(request_id)


class SumFeedback(FeedbackStrategy):
    """Two codebooks: the second code is a fixed function of the first and the hidden state; feedback is their sum."""

    def __init__(self) -> None:
        self.second = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(5))

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        assert batch.input_embeds is not None
        for request, row in requests:
            batch.input_embeds[row] = request.state["feedback"]

    def extract_output(
        self,
        batch: ForwardBatch,
        output: ForwardOutput,
        requests: list[tuple[ARRequest, int]],
    ) -> dict[str, list[OutgoingMessage]]:
        produced = {}
        for request, row in requests:
            first = request.output_ids[-1]
            code = int((output.hidden[row] @ self.second.T).argmax())
            request.state["feedback"] = self.model.embed(torch.tensor([first]))[0] + self.second[code]
            produced[request.request_id] = [OutgoingMessage(request.request_id, "stream", (first, code))]
        return produced


class FeedbackRunner(FeedbackARModelRunner):
    """A runner over :class:`SumFeedback`; a request may wait for permission chunks before each step."""

    def __init__(self, model: ARModel, feedback: FeedbackStrategy | None = None) -> None:
        super().__init__(model, feedback or SumFeedback())
        self.allowed: dict[str, int] = {}

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type == "stream_chunk":
            self.allowed[message.request_id] += message.data
            return None
        data = dict(message.data)
        self.allowed[message.request_id] = data.get("allowed", 10_000)
        sampling: SamplingParams = data["sampling"]
        return ARRequest(
            message.request_id,
            message.request,
            data["prompt"],
            sampling,
            state=data,
            random=RandomStream(sampling.seed),
        )

    def can_step(self, request: ARRequest) -> bool:
        return len(request.output_ids) < self.allowed[request.request_id]

    def result(self, request: ARRequest) -> dict[str, Any]:
        return {"ids": list(request.output_ids), "reason": request.finish_reason}

    def release(self, request_id: str) -> None:
        self.allowed.pop(request_id, None)
