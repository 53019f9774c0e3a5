"""The code predictor: given the talker's state and a frame's first code, the frame's other codes, one after another.

It is nine tenths of speech time in the reference, so it has a path of its own: requests in one batch, one static cache
per call, no framework loop around it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from omni_qwen3.config import DecoderConfig
from omni_qwen3.layers import DecoderLayer, RMSNorm, Rotary

Choose = Callable[[torch.Tensor, int], torch.Tensor]
"""``(logits [B, vocab], group) -> codes [B]``."""


class PredictorDecoder(nn.Module):
    """The predictor's layers, and an embedding for each group but the first."""

    def __init__(self, config: DecoderConfig, groups: int) -> None:
        super().__init__()
        self.codec_embedding = nn.ModuleList(
            [nn.Embedding(config.vocab_size, config.hidden_size) for _ in range(groups - 1)]
        )
        self.layers = nn.ModuleList([DecoderLayer(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class _FrameAttention:
    """Causal attention of one call: ``B`` sequences of at most ``groups`` positions in a static cache."""

    def __init__(self, config: DecoderConfig, batch: int, groups: int, like: torch.Tensor) -> None:
        shape = (config.layers, batch, config.kv_heads, groups, config.head_dim)
        self._keys, self._values = like.new_empty(shape), like.new_empty(shape)
        self._batch, self._grouped = batch, config.heads // config.kv_heads
        self.start = 0

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        """``[B * t, heads, head_dim]``, the ``t`` positions of a sequence side by side."""
        batch, steps = self._batch, query.shape[0] // self._batch
        end = self.start + steps
        kv_heads, width = key.shape[1:]
        keys, values = self._keys[layer], self._values[layer]
        keys[:, :, self.start : end] = key.view(batch, steps, kv_heads, width).transpose(1, 2)
        values[:, :, self.start : end] = value.view(batch, steps, kv_heads, width).transpose(1, 2)
        k, v = keys[:, :, :end], values[:, :, :end]
        if steps == 1:
            # A single query per sequence: the query heads of a KV head stand as rows.
            q = query.view(batch, kv_heads, self._grouped, width)
            return F.scaled_dot_product_attention(q, k, v, scale=scale).reshape(query.shape)
        q = query.view(batch, steps, -1, width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=self._grouped > 1)
        return mixed.transpose(1, 2).reshape(query.shape)


class CodePredictor(nn.Module):
    """Predicts groups 1 to ``groups - 1`` of a frame."""

    def __init__(self, config: DecoderConfig, groups: int) -> None:
        super().__init__()
        self.model = PredictorDecoder(config, groups)
        self.lm_head = nn.ModuleList(
            [nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(groups - 1)]
        )
        self.rotary = Rotary(config)
        self.config, self.groups = config, groups

    def forward(
        self, hidden: torch.Tensor, first_embed: torch.Tensor, choose: Choose
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Complete ``B`` frames.

        Args:
            hidden: ``[B, hidden]``, the talker's normed output that the first code was chosen from.
            first_embed: ``[B, hidden]``, the talker's embedding of the first code.
            choose: picks codes from logits.

        Returns:
            ``[B, groups - 1]`` codes, and ``[B, hidden]``: the sum of the embeddings of all groups, the first included.
        """
        batch = hidden.shape[0]
        attention = _FrameAttention(self.config, batch, self.groups, hidden)
        cos, sin = self.rotary(torch.arange(self.groups, device=hidden.device), hidden.dtype)
        x = torch.stack([hidden, first_embed], dim=1).flatten(0, 1)
        total = first_embed.clone()
        codes = []
        for group in range(self.groups - 1):
            steps = 2 if group == 0 else 1
            span = slice(attention.start, attention.start + steps)
            c, s = (each[span].repeat(batch, 1, 1) if steps > 1 else each[span] for each in (cos, sin))
            for layer in self.model.layers:
                x = layer(x, c, s, attention)
            attention.start += steps
            last = self.model.norm(x.view(batch, steps, -1)[:, -1])
            code = choose(self.lm_head[group](last), group)
            codes.append(code)
            x = self.model.codec_embedding[group](code)
            total += x
        return torch.stack(codes, dim=1), total
