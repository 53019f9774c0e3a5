"""The blocks of the decoders on the engine's contract: packed tokens in, attention through the batch's cache.

Architecture: grouped-query attention, rotary positions over interleaved pairs, gated feed-forward; optionally query and key norms.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.api import PagedAttention
from omni_fish_s2.config import DecoderConfig
from omni_torch.api import DecoderStack, LayerWeights, RMSNorm, all_layers, matrix_of


def rotary(positions: torch.Tensor, head_dim: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes cosines and sines: from positions of any shape, two float32 tensors ``[*positions, 1, head_dim / 2]``.

    Their values are rounded to bfloat16 in every compute dtype, because the model was trained with such a table.
    """
    steps = torch.arange(0, head_dim, 2, device=positions.device)[: head_dim // 2].float()
    angles = positions.float().unsqueeze(-1) * (1.0 / base ** (steps / head_dim))
    angles = angles.unsqueeze(-2)
    return angles.cos().bfloat16().float(), angles.sin().bfloat16().float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate neighbouring pairs of ``[..., heads, head_dim]``, in float32. (The operation ``rotary`` rotates halves.)"""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
    return turned.flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.heads, config.kv_heads, config.head_dim
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.wqkv = nn.Linear(config.dim, width, bias=config.qkv_bias)
        self.wo = nn.Linear(self.heads * self.head_dim, config.dim, bias=config.output_bias)
        self.has_norms = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.norm_eps)

    def head_norms(self) -> torch.Tensor | None:
        """Return the norms of queries and keys, ``[heads + kv_heads, head_dim]``; ``None`` if there are none."""
        if not self.has_norms:
            return None
        query, key = self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)
        return torch.cat([query, key]).detach()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        heads = self.wqkv(x).view(x.shape[0], -1, self.head_dim)
        query, key, value = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.has_norms:
            query, key = self.q_norm(query), self.k_norm(key)
        mixed = attention(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value)
        return self.wo(mixed.reshape(x.shape[0], -1))


class FeedForward(nn.Module):
    """The gated feed-forward block; ``w13`` is gate and input in one."""

    def __init__(self, dim: int, intermediate_size: int) -> None:
        super().__init__()
        self.w13 = nn.Linear(dim, 2 * intermediate_size, bias=False)
        self.w2 = nn.Linear(intermediate_size, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * value)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.attention = Attention(config, layer)
        self.feed_forward = FeedForward(config.dim, config.intermediate_size)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        x, normed = self.ffn_norm.add(x, self.attention(self.attention_norm(x), cos, sin, attention))
        return x + self.feed_forward(normed)

    def described(self) -> LayerWeights | None:
        """Return the layer as data; ``None`` if a weight is in a layout of its own."""
        attention, block = self.attention, self.feed_forward
        qkv, output, gate_up, down = map(matrix_of, (attention.wqkv, attention.wo, block.w13, block.w2))
        if qkv is None or output is None or gate_up is None or down is None:
            return None
        norms = self.attention_norm.weight.detach(), self.ffn_norm.weight.detach(), attention.head_norms()
        return LayerWeights(*norms, qkv, output, (gate_up, down))


def describe(config: DecoderConfig, layers: nn.ModuleList, norm: RMSNorm) -> DecoderStack | None:
    """Return a decoder as data, for :class:`omni_torch.operations.decoder_step.DecoderStep`; ``None`` if a layer cannot be described."""
    if (described := all_layers(layers, DecoderLayer.described)) is None:
        return None
    sizes = config.heads, config.kv_heads, config.head_dim, config.norm_eps
    return DecoderStack(described, norm.weight.detach(), *sizes, pairs=True)


def whole(angles: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return cosines or sines of :func:`rotary` as the operations of whole steps take them: ``[*positions, 1, head_dim]``."""
    return torch.cat([angles, angles], dim=-1).to(dtype)
