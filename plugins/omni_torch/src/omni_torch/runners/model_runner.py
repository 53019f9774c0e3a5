"""Model runners in PyTorch: ``ForwardBatch -> before hook -> model forward -> after hook -> sampling -> output``.

:class:`ARModelRunner` has the steps that every autoregressive model shares; a model's runner overrides the hooks.
:class:`FeedbackARModelRunner` adds the feedback loop, in which a step's input depends on the last step's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from omni_core.api import (
    ARModel,
    ARRequest,
    ConfigError,
    FeedbackStrategy,
    Forward,
    ForwardBatch,
    ForwardOutput,
    ModelRunner,
    OutgoingMessage,
)
from omni_torch.engine.key_values import KeyValues
from omni_torch.loop.packing import sampled_rows
from omni_torch.processes.tensor_parallel import ALONE, TensorParallel
from omni_torch.sampling.sample import keep_logprobs, sample


class ARModelRunner(ModelRunner):
    """Runs an autoregressive model. A subclass implements ``receive`` and ``result`` and overrides hooks as it needs.

    Attributes:
        hands_over: whether its requests' keys and values come from another stage (:meth:`past_key_values`) or go to one
            (:meth:`export_key_values`); a scheduler that cannot do that is refused at the start.
        exports_hidden: whether what it exports has the final hidden states, which are then stored beside keys and values.
        parallel: the ranks of the model, which then agree on the size of their KV caches.
        kv_heads: its key/value heads over all ranks; ``None``: no two ranks hold the same one.
        exporter: set by the scheduler.
    """

    hands_over: bool = False
    exports_hidden: bool = False
    parallel: TensorParallel = ALONE
    kv_heads: int | None = None
    exporter: Callable[[ARModelRunner, ARRequest], KeyValues] | None = None

    def __init__(self, model: ARModel, device: str | torch.device = "cpu") -> None:
        self.model = model
        self.device = torch.device(device)
        if self.exports_hidden:
            self.kept_width = model.hidden_size

    def past_key_values(self, request: ARRequest) -> KeyValues | None:
        """Return the keys and values of the prompt's first positions, all heads, where another stage has computed them.

        At least one position of the prompt must be left to compute. Asked at admission, and again when a preempted request is
        computed anew, so they are kept as long as the request.
        """
        return None

    def export_key_values(self, request: ARRequest) -> KeyValues:
        """Return a copy of the keys and values of all positions computed so far, for :meth:`result`. All ranks must call it alike.

        Rank 0 gets all heads; the others, whose results nobody reads, their own.

        Raises:
            ConfigError: ``hands_over`` is not set.
        """
        if self.exporter is None:
            raise ConfigError(f"{type(self).__name__}: hands_over must be true, so that its scheduler exports")
        return self.exporter(self, request)

    def before_forward(self, batch: ForwardBatch) -> None:
        """Adjust the batch: replace rows of ``input_embeds``, fill ``extra``."""

    def forward(self, batch: ForwardBatch, forward: Forward) -> ForwardOutput:
        """Run ``forward``, which is the model's own or the scheduler's faster one; override it to use another for some
        batches.
        """
        return forward(batch)

    def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
        """Read the output: captured layers, hidden states."""

    def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
        """Return the next token id of each request from its row of ``logits`` (``[m, ...]``, as ``compute_logits`` made them).

        The default samples by each request's :class:`SamplingParams`. A model with a sampler of its own overrides it. A step that
        failed is computed again, so the choice must be a function of the request and its position.
        """
        return sample(logits, requests)

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        """Called when tokens were chosen and appended (``finish_reason`` set where finished), before they are emitted."""

    def execute(self, batch: ForwardBatch, forward: Forward | None = None) -> list[tuple[ARRequest, int]]:
        """See :meth:`ModelRunner.execute`."""
        batch.input_embeds = self._input_embeds(batch)
        self.before_forward(batch)
        output = self.forward(batch, forward or self.model.forward)
        if self.exports_hidden and batch.keep is not None:
            batch.keep(output.hidden)
        self.after_forward(batch, output)
        if not batch.sampled:
            return []
        requests = [batch.requests[index] for index in batch.sampled]
        hidden = output.hidden
        if len(requests) < len(hidden):  # else it is a step of decodes, whose rows are all sampled
            hidden = hidden[batch.sample_rows]
        logits = self.model.compute_logits(hidden)
        chosen = self.choose(logits, requests)
        keep_logprobs(logits, requests, chosen)
        sampled = list(zip(requests, chosen, strict=True))
        for request, token in sampled:
            request.output_ids.append(token)
            if token in request.sampling.stop_ids:
                request.finish_reason = "stop"
            elif len(request.output_ids) >= request.sampling.max_new_tokens:
                request.finish_reason = "length"
            elif request.constraint is not None:
                request.constraint.advance(request.output_ids)
        self.after_sampling(batch, output, sampled)
        return sampled

    def _input_embeds(self, batch: ForwardBatch) -> torch.Tensor:
        """Return ``embed(ids)``, with the rows that a request brings as embeddings in their places."""
        ids, row = batch.input_ids, 0
        if any(start < len(each.prompt_ids) for each, start in zip(batch.requests, batch.starts, strict=True)):
            ids = ids.clamp(min=0)  # negative ids stand for rows that a prompt brings
        embeds: torch.Tensor = self.model.embed(ids)
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


class FeedbackARModelRunner(ARModelRunner):
    """A runner whose inputs come from a :class:`FeedbackStrategy`: a talker predicts the first code of a frame, a small
    second network the rest, and the sum of their embeddings is the next input.

    Inputs that were fed back are kept in ``output_embeds``, so that a preempted request is recomputed exactly.
    """

    def __init__(self, model: ARModel, feedback: FeedbackStrategy, device: str | torch.device = "cpu") -> None:
        super().__init__(model, device)
        self.feedback = feedback
        feedback.bind(model, self.device)

    def before_forward(self, batch: ForwardBatch) -> None:
        """Let the strategy write the inputs of positions that are computed for the first time."""
        new, row = list[tuple[ARRequest, int]](), -1
        for request, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
            request.messages = []  # of a step that failed half-way, which is now repeated
            row += length
            if start + length == request.length and len(request.output_embeds) == len(request.output_ids) - 1:
                new.append((request, row))
        if not new:
            return
        self.feedback.write_buffers(batch, new)
        assert batch.input_embeds is not None
        for request, row in new:
            request.output_embeds.append(batch.input_embeds[row].clone())

    def forward(self, batch: ForwardBatch, forward: Forward) -> ForwardOutput:
        """Run ``forward``, or the strategy's own if the batch holds prompts and the strategy has one."""
        holds_prompt = any(start < len(r.prompt_ids) for r, start in zip(batch.requests, batch.starts, strict=True))
        own = self.feedback.prefill_forward(batch) if holds_prompt else None
        return forward(batch) if own is None else own

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        """Call the strategy for the step of every request that continues."""
        rows = sampled_rows(batch)
        going_on = [
            (request, row) for (request, _), row in zip(sampled, rows, strict=True) if request.finish_reason is None
        ]
        if not going_on:
            return
        produced = self.feedback.extract_output(batch, output, going_on)
        for request, _ in going_on:
            request.messages = produced.pop(request.request_id, [])
        if produced:
            raise ValueError(f"extract_output: messages of requests that were given no token: {sorted(produced)}")

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        """Return the strategy's messages of this request for this step."""
        messages, request.messages = request.messages, []
        return messages
