"""The blocks of a Qwen3 decoder on the engine's contract: packed tokens in, attention through the batch's paged cache.

Architecture: query and key norms, grouped-query attention, rotary positions, a gated feed-forward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.api import CacheAttention, PagedAttention
from omni_qwen3_tts.config import DecoderConfig
from omni_torch.api import (
    DecoderStack,
    LayerWeights,
    RMSNorm,
    all_layers,
    matrix_of,
    norm_rotary,
    norm_rotary_store,
)


class Rotary(nn.Module):
    """Cosines and sines of positions."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.dim, self.theta = head_dim, theta

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, ``[n, 1, head_dim]`` each, of positions ``[n]``."""
        steps = torch.arange(0, self.dim, 2, dtype=torch.float32, device=positions.device)
        angles = positions.float().unsqueeze(-1) * (1.0 / self.theta ** (steps / self.dim))
        angles = torch.cat([angles, angles], dim=-1).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.heads, config.kv_heads, config.head_dim
        width, bias = (self.heads + 2 * self.kv_heads) * self.head_dim, config.attention_bias
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.norm_eps)
        self._weights: torch.Tensor | None = None

    def head_weights(self) -> torch.Tensor:
        """Return the weights of both norms for each head, ``[heads + kv_heads, head_dim]``, joined at the first step."""
        if self._weights is None:
            queries, keys = self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)
            self._weights = torch.cat([queries, keys])
        return self._weights

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        projected = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        weights, eps = self.head_weights(), self.q_norm.eps
        if isinstance(attention, CacheAttention):
            query = norm_rotary_store(projected, weights, cos, sin, *attention.place(self.layer), eps)
            mixed = attention.attend(self.layer, query)
        else:
            turned, value = projected.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
            query, key = norm_rotary(turned, weights, cos, sin, eps).split([self.heads, self.kv_heads], dim=1)
            mixed = attention(self.layer, query, key, value)
        return self.o_proj(mixed.reshape(x.shape[0], -1))


class MLP(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        mixed = self.self_attn(self.input_layernorm(x), cos, sin, attention)
        x, normed = self.post_attention_layernorm.add(x, mixed)
        return x + self.mlp(normed)


def _described(layer: nn.Module) -> LayerWeights | None:
    assert isinstance(layer, DecoderLayer)
    attention, mlp = layer.self_attn, layer.mlp
    qkv, output, wide, narrow = map(matrix_of, (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj))
    if qkv is None or output is None or wide is None or narrow is None:
        return None
    norms = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
    return LayerWeights(*norms, attention.head_weights().detach(), qkv, output, (wide, narrow))


def describe(config: DecoderConfig, layers: nn.ModuleList, norm: RMSNorm) -> DecoderStack | None:
    """Return a decoder as data, for kernels of whole steps; ``None`` if a layer cannot be described."""
    if (described := all_layers(layers, _described)) is None:
        return None
    return DecoderStack(
        described, norm.weight.detach(), config.heads, config.kv_heads, config.head_dim, config.norm_eps
    )
