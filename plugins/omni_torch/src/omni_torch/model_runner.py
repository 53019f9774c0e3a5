"""The model runner: ``ForwardBatch -> before hook -> model forward -> after hook -> sampling -> output`` (seed 002).

A scheduler decides *which* requests compute *how many* positions; the runner knows *what* they are. The base class owns
the mechanics that every model shares; a model's runner overrides the hooks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch

from omni_core.model_runner.types import ARModel, ARRequest, ForwardBatch, ForwardOutput
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_torch.sampling import sample


class ModelRunner(ABC):
    """Drives one model for a scheduler. One thread calls it.

    A subclass implements :meth:`receive` and :meth:`result` and overrides hooks as it needs. Whatever a hook raises for
    one request must be raised from a per-request method (:meth:`receive`, :meth:`emit`, :meth:`result`) so that the
    scheduler can fail that request alone.
    """

    kept_width: int = 0
    """How many values a step makes for every position that are read of prompt positions later (a talker reads a thinker's
    hidden states). An engine that shares prompts keeps them beside K and V; see ``ForwardBatch.keep`` and :meth:`reuse`.
    """

    replayed: Callable[[ForwardBatch], ForwardOutput] | None = None
    """Set by a scheduler that has a faster way to run the model's forward than to call it, such as a recorded one."""

    def __init__(self, model: ARModel, device: str | torch.device = "cpu") -> None:
        self.model = model
        self.device = torch.device(device)

    # --- per request -----------------------------------------------------------------------------------------------
    @abstractmethod
    def receive(self, message: IncomingMessage) -> ARRequest | None:
        """Take in a message; return the request at the moment it becomes schedulable (once), else ``None``.

        Called for every message of a request, also after it was returned (more stream chunks). A request that is returned
        with its ``finish_reason`` set is finished without a step (there was nothing to compute); so is one that is returned again,
        when what it waited for will not come.

        Raises:
            InvalidRequestError: the request is at fault; it alone fails.
        """

    def can_step(self, request: ARRequest) -> bool:
        """Whether the request's next decode step has all its inputs (``False`` while it waits for a stream)."""
        return True

    def reuse(self, request: ARRequest, rows: torch.Tensor) -> None:  # noqa: B027 - optional hook
        """The first prompt positions are not computed: an earlier request's K and V serve. ``rows``: what was kept of them,
        ``[positions, kept_width]``, to be copied. Also called when a request is computed again.
        """

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        """Stream messages for a token just chosen. ``request.output_ids`` ends with it; ``finish_reason`` is set if it was the last.

        A request that has more to do than that may be given its next part here (:meth:`ARRequest.extend`): it goes on.
        """
        return ()

    @abstractmethod
    def result(self, request: ARRequest) -> Any:
        """The payload data of a finished request."""

    def release(self, request_id: str) -> None:  # noqa: B027 - optional hook
        """Forget every state of the request: it finished, failed or was aborted. Also called for requests never returned."""

    # --- per step --------------------------------------------------------------------------------------------------
    def before_forward(self, batch: ForwardBatch) -> None:  # noqa: B027 - optional hook
        """Adjust the batch: replace rows of ``input_embeds``, fill ``extra``."""

    def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:  # noqa: B027 - optional hook
        """Read what the forward produced: captured layers, hidden states."""

    def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
        """The next token id of each request from its row of ``logits`` (``[m, ...]``, as ``compute_logits`` made them).

        The default samples by each request's :class:`SamplingParams`. A model with a sampler of its own overrides it. A step that
        failed is computed again, so the choice must be a function of the request and its position.
        """
        return sample(logits, requests)

    def after_sampling(  # noqa: B027 - optional hook
        self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]
    ) -> None:
        """After tokens were chosen and appended (``finish_reason`` set where finished), before they are emitted."""

    def execute(self, batch: ForwardBatch) -> list[tuple[ARRequest, int]]:
        """Run one step: fill inputs, hooks, forward, sample, append. Returns each sampled request with its new token id."""
        batch.input_embeds = self._input_embeds(batch)
        self.before_forward(batch)
        output = self.forward(batch)
        self.after_forward(batch, output)
        if not batch.sampled:
            return []
        requests = [batch.requests[index] for index in batch.sampled]
        logits = self.model.compute_logits(output.hidden[batch.sample_rows])
        sampled = list(zip(requests, self.choose(logits, requests), strict=True))
        for request, token in sampled:
            self._append(request, token)
        self.after_sampling(batch, output, sampled)
        return sampled

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """The model's forward, as the scheduler runs it; a subclass may choose another for some batches."""
        return self.model.forward(batch) if self.replayed is None else self.replayed(batch)

    def _input_embeds(self, batch: ForwardBatch) -> torch.Tensor:
        """``embed(ids)``, with the rows that a request brings as embeddings in their places."""
        embeds = self.model.embed(batch.input_ids.clamp(min=0))
        row = 0
        for request, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
            prompt = len(request.prompt_ids)
            if request.prompt_embeds is not None and start < prompt:
                end = min(start + length, prompt)
                embeds[row : row + end - start] = request.prompt_embeds[start:end]
            first, last = max(start, prompt), min(start + length, prompt + len(request.output_embeds))
            if first < last:
                embeds[row + first - start : row + last - start] = torch.stack(
                    request.output_embeds[first - prompt : last - prompt]
                )
            row += length
        return embeds

    def _append(self, request: ARRequest, token: int) -> None:
        request.output_ids.append(token)
        if token in request.sampling.stop_ids:
            request.finish_reason = "stop"
        elif len(request.output_ids) >= request.sampling.max_new_tokens:
            request.finish_reason = "length"
