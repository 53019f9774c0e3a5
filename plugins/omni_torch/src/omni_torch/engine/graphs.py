"""Decode steps as CUDA graphs: the engine's use of :class:`omni_torch.runners.graphs.Graphs`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from omni_core.api import ARModel, ARRequest, ForwardBatch, ForwardOutput
from omni_torch.engine.attention.base import AttentionBackend, StepAttention
from omni_torch.engine.attention.static import DecodeTables, DeferredAttention, StaticAttention
from omni_torch.runners.graphs import Graphs, Named, padded

FIRST_WIDTH = 256
"""Positions per request that the narrowest graph can read. Each next graph is twice as wide."""


class DecodeGraphs:
    """A model's forward: replayed in steps where every request computes the position of a generated token, else called.

    Attributes:
        steps: the number of replayed steps.
    """

    def __init__(
        self, model: ARModel, backend: AttentionBackend, graphs: Graphs, max_running: int, max_context: int
    ) -> None:
        self._model, self._backend, self._graphs = model, backend, graphs
        self._tables = DecodeTables(backend.cache, padded(max_running), max_context)
        self._attentions: dict[tuple[int, int], StaticAttention] = {}
        self.steps = 0

    def plan(self, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> StepAttention:
        """Return the attention of a step: the backend's, made only when it is needed if the step may be replayed."""
        decodes = all(
            length == 1 and start >= len(request.prompt_ids)
            for request, start, length in zip(requests, starts, lengths, strict=True)
        )
        if decodes and not self._graphs.failed and max(starts) < self._tables.width * self._backend.cache.block_size:
            return DeferredAttention(self._backend, requests, starts, lengths)
        return self._backend.plan(requests, starts, lengths)

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Compute a batch: replay its graph, or call the model where it has none."""
        extra = tuple(sorted(batch.extra.items()))
        constant = all(isinstance(value, (bool, int, float, str)) for _, value in extra)
        if not isinstance(batch.attention, DeferredAttention) or not constant:
            return self._model.forward(batch)
        assert batch.input_embeds is not None
        # Padding repeats the shortest request, which costs attention the least.
        padding_row = min(range(len(batch.starts)), key=batch.starts.__getitem__)
        attention = self._attention(len(batch.requests), max(batch.starts) + 1)
        self._tables.fill(batch.requests, batch.starts, attention.rows, padding_row)
        batch.attention.written_at(self._tables.writes[: len(batch.requests)])
        attention.refill()
        inputs = [batch.input_ids, batch.positions.movedim(-1, 0), batch.input_embeds]
        key = (attention, batch.positions.dim(), batch.positions.dtype, extra)
        outputs = self._graphs.run(key, partial(self._build, attention, extra), inputs, padding_row)
        if outputs is None:
            self._attentions.clear()
            return self._model.forward(batch)
        self.steps += 1
        return ForwardOutput(outputs.pop("hidden"), outputs)

    def _attention(self, requests: int, longest: int) -> StaticAttention:
        """Return the narrowest attention that serves a step, for its number of rows."""
        cache, tables, static = self._backend.cache, self._tables, self._backend.static_decode
        positions = FIRST_WIDTH
        while positions < longest:
            positions *= 2
        width = tables.width if static.any_width else min(cache.blocks_for(positions), tables.width)
        size = padded(requests), width
        if size not in self._attentions:
            self._attentions[size] = static(self._backend, tables, *size)
        return self._attentions[size]

    def _build(
        self,
        attention: StaticAttention,
        extra: tuple[tuple[str, Any], ...],
        ids: torch.Tensor,
        positions: torch.Tensor,
        embeds: torch.Tensor,
    ) -> Callable[[], Named]:
        def step() -> Named:
            attention.begin()
            batch = ForwardBatch([], [], [], ids, embeds, positions.movedim(0, -1), attention, ids, [], dict(extra))
            # A graph is the same for all requests: recording fails here for a model whose forward reads them.
            del batch.requests, batch.starts, batch.lengths, batch.sample_rows, batch.sampled
            output = self._model.forward(batch)
            return {"hidden": output.hidden, **output.captured}

        return step
