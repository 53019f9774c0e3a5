"""The fast decoder: predicts a frame's remaining codes, one by one, from the slow decoder's state and the frame's first
code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.api import DecodeCache
from omni_fish_s2.config import DecoderConfig, FishConfig
from omni_fish_s2.layers import DecoderLayer, describe, rotary, whole
from omni_torch.api import DecoderStep, RMSNorm, embedding

Choose = Callable[[torch.Tensor, int], torch.Tensor]
"""``(logits [B, codebook_size], index of the code within its frame) -> codes [B]``."""


class _FrameAttention:
    """Causal attention of one call: ``B`` sequences of at most ``steps`` positions in a static cache."""

    def __init__(self, config: DecoderConfig, batch: int, steps: int, like: torch.Tensor) -> None:
        shape = (config.layers, batch, config.kv_heads, steps, config.head_dim)
        self._keys, self._values = like.new_empty(shape), like.new_empty(shape)
        self._batch, self._group = batch, config.heads // config.kv_heads
        self.start = 0

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        """Attend with ``[B * t, heads, head_dim]``, the ``t`` positions of a sequence adjacent."""
        batch, steps = self._batch, query.shape[0] // self._batch
        end = self.start + steps
        kv_heads, width = key.shape[1:]
        keys, values = self._keys[layer], self._values[layer]
        keys[:, :, self.start : end] = key.view(batch, steps, kv_heads, width).transpose(1, 2)
        values[:, :, self.start : end] = value.view(batch, steps, kv_heads, width).transpose(1, 2)
        k, v = keys[:, :, :end], values[:, :, :end]
        if steps == 1:
            # With a single query per sequence, the query heads of a KV head become rows.
            q = query.view(batch, kv_heads, self._group, width)
            return F.scaled_dot_product_attention(q, k, v, scale=scale).reshape(query.shape)
        q = query.view(batch, steps, -1, width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=self._group > 1)
        return mixed.transpose(1, 2).reshape(query.shape)


class FastDecoder(nn.Module):
    """Predicts codes 1 to ``codebooks - 1`` of a frame. Positions: the slow decoder's state, code 0, code 1, ..."""

    def __init__(self, config: FishConfig) -> None:
        super().__init__()
        fast = config.fast
        self.config, self.codebooks = fast, config.codebooks
        self.embeddings = embedding(config.codebook_size, fast.dim)
        self.layers = nn.ModuleList([DecoderLayer(fast, layer) for layer in range(fast.layers)])
        self.norm = RMSNorm(fast.dim, fast.norm_eps)
        self.output = nn.Linear(fast.dim, config.codebook_size, bias=False)
        self.has_projection = fast.dim != config.slow.dim
        if self.has_projection:
            self.project_in = nn.Linear(config.slow.dim, fast.dim)
        self._step = DecoderStep(partial(describe, fast, self.layers, self.norm), fast.layers)

    def forward(self, hidden: torch.Tensor, first: torch.Tensor, choose: Choose) -> torch.Tensor:
        """Complete ``B`` frames: ``[B, codebooks]`` codes.

        Args:
            hidden: ``[B, slow dim]``, the slow decoder's normed output that the first code was chosen from.
            first: ``[B]`` int64, the first codes.
            choose: picks codes from logits.
        """
        batch = hidden.shape[0]
        positions = torch.arange(self.codebooks, device=hidden.device)
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_base)
        start = self.project_in(hidden) if self.has_projection else hidden
        if self._step.fits(start):
            return self._by_steps(start, first, choose, whole(cos, start.dtype), whole(sin, start.dtype))
        attention = _FrameAttention(self.config, batch, self.codebooks, hidden)
        x = torch.stack([start, self.embeddings(first)], dim=1).flatten(0, 1)
        codes = [first]
        for index in range(1, self.codebooks):
            steps = 2 if index == 1 else 1
            span = slice(attention.start, attention.start + steps)
            c, s = (each[span].repeat(batch, 1, 1) if steps > 1 else each[span] for each in (cos, sin))
            for layer in self.layers:
                x = layer(x, c, s, attention)
            attention.start += steps
            logits = self.output(self.norm(x.view(batch, steps, -1)[:, -1]))
            codes.append(choose(logits, index))
            x = self.embeddings(codes[-1])
        return torch.stack(codes, dim=1)

    def _by_steps(
        self, x: torch.Tensor, first: torch.Tensor, choose: Choose, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Complete frames position by position, each in one call of a kernel. ``x``: ``[B, dim]``, of position 0."""
        batch, config = len(x), self.config
        shape = config.layers, batch * self.codebooks, config.kv_heads, config.head_dim
        keys, values = (tuple(x.new_empty(shape)) for _ in range(2))
        pages = torch.arange(batch, dtype=torch.int32, device=x.device).unsqueeze(1)
        codes: list[torch.Tensor] = []
        for position in range(self.codebooks):
            lengths = torch.full((batch,), position + 1, dtype=torch.int32, device=x.device)
            c, s = (each[position].expand(batch, 1, -1) for each in (cos, sin))
            (output,) = self._step.compute(x, c, s, DecodeCache(pages, lengths, self.codebooks, keys, values))
            codes.append(choose(self.output(output), position) if position else first)
            x = self.embeddings(codes[-1])
        return torch.stack(codes, dim=1)
