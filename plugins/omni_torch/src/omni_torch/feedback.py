"""The feedback loop: models whose next input depends on the last step's output inside the same runner (seed 002).

A talker predicts the first code of a frame, a small second network the rest, and their embeddings' sum is the next
input. The loop is here, once; what differs between models is one :class:`FeedbackStrategy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch

from omni_core.model_runner.types import ARModel, ARRequest, ForwardBatch, ForwardOutput
from omni_core.scheduling.base import MessageQueue, OutgoingMessage
from omni_torch.model_runner import ModelRunner


class FeedbackStrategy(ABC):
    """The model-specific part of a feedback loop."""

    @abstractmethod
    def write_buffers(self, model: ARModel, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        """Before the forward: write the input of each request's newest position into its row of ``batch.input_embeds``.

        Args:
            requests: ``(request, row)`` of every request whose newest generated position is computed for the first time.
        """

    @abstractmethod
    def extract_output(
        self,
        model: ARModel,
        batch: ForwardBatch,
        output: ForwardOutput,
        requests: list[tuple[ARRequest, int]],
        outbox: MessageQueue[OutgoingMessage],
    ) -> None:
        """After sampling: compute codebooks and feedback, and push stream messages to ``outbox``.

        Args:
            requests: ``(request, row)`` of every request that has just got a token and goes on.
        """

    def prefill_forward(self, model: ARModel, batch: ForwardBatch) -> ForwardOutput | None:
        """A model's own forward for a batch that holds prompts; ``None`` uses the ordinary one."""
        return None


class FeedbackARModelRunner(ModelRunner):
    """A runner whose inputs are fed back. Inputs that were fed are kept in ``output_embeds``, so that a preempted request
    is computed again exactly.
    """

    def __init__(self, model: ARModel, strategy: FeedbackStrategy, device: str | torch.device = "cpu") -> None:
        super().__init__(model, device)
        self.strategy = strategy
        self._produced: MessageQueue[OutgoingMessage] = MessageQueue()

    def before_forward(self, batch: ForwardBatch) -> None:
        self._produced.drain()  # of a step that failed half-way: it is repeated and produces them again
        new = [
            (request, last_row)
            for request, start, length, last_row in _segments(batch)
            if start + length == request.length and len(request.output_embeds) == len(request.output_ids) - 1
        ]
        if not new:
            return
        self.strategy.write_buffers(self.model, batch, new)
        assert batch.input_embeds is not None
        for request, row in new:
            request.output_embeds.append(batch.input_embeds[row].clone())

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        holds_prompt = any(start < len(r.prompt_ids) for r, start in zip(batch.requests, batch.starts, strict=True))
        own = self.strategy.prefill_forward(self.model, batch) if holds_prompt else None
        return super().forward(batch) if own is None else own

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        rows = batch.sample_rows.tolist()
        going_on = [
            (request, row) for (request, _), row in zip(sampled, rows, strict=True) if request.finish_reason is None
        ]
        if going_on:
            self.strategy.extract_output(self.model, batch, output, going_on, self._produced)

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        """What the strategy produced in this step; it belongs to several requests and is handed on once."""
        return self._produced.drain()


def _segments(batch: ForwardBatch) -> Iterable[tuple[ARRequest, int, int, int]]:
    """``(request, start, length, row of its last token)`` of each request of the batch."""
    row = 0
    for request, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
        row += length
        yield request, start, length, row - 1
