"""The decoder of Qwen2.5-Omni on the engine's contract: packed tokens in, attention through the batch's paged cache.

Architecture: Qwen2 with biases on queries, keys and values, grouped-query attention, a dense gated feed-forward, and rotary positions
of three axes whose frequencies follow each other, as in transformers' ``qwen2_5_omni`` (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from omni_core.api import PagedAttention
from omni_qwen3.config import DecoderConfig
from omni_qwen3.layer_weights import dense_matrices, describe
from omni_qwen3.layers import MLP
from omni_qwen3.sharding import local_config
from omni_torch.api import ALONE, DecoderStack, LayerWeights, RMSNorm, TensorParallel, embedding, matrix_of, rotary


class Rotary(nn.Module):
    """Cosines and sines of positions; the frequencies are divided between time, height and width, in this order."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._theta, self._dim = config.rope_theta, config.head_dim
        self._sections = list(config.mrope_section)
        self._frequencies: torch.Tensor | None = None

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, ``[n, 1, head_dim]`` each, of positions ``[n]`` or ``[3, n]``."""
        if self._frequencies is None or self._frequencies.device != positions.device:
            steps = torch.arange(0, self._dim, 2, dtype=torch.float32, device=positions.device)
            self._frequencies = 1.0 / self._theta ** (steps / self._dim)
        angles = positions.float().unsqueeze(-1) * self._frequencies
        if angles.dim() == 3:
            parts = [angles[axis % 3] for axis in range(len(self._sections))]
            pieces = [part.split(self._sections, -1)[axis] for axis, part in enumerate(parts)]
            angles = torch.cat(pieces, -1)
        angles = torch.cat([angles, angles], dim=-1).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self._layer, self._heads, self._kv_heads = layer, config.heads, config.kv_heads
        self._head_dim = config.head_dim
        width = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, width)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        projected = self.qkv_proj(x).view(x.shape[0], -1, self._head_dim)
        turned, value = projected.split([self._heads + self._kv_heads, self._kv_heads], dim=1)
        query, key = rotary(turned, cos, sin).split([self._heads, self._kv_heads], dim=1)
        mixed = attention(self._layer, query, key, value)
        return self.o_proj(mixed.reshape(x.shape[0], -1))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual.

    Sharded (``parallel``, with the config of :func:`omni_qwen3.sharding.local_config`), each rank has some of the heads and a slice of
    the feed-forward, and both sums are taken over the ranks.
    """

    def __init__(self, config: DecoderConfig, layer: int, parallel: TensorParallel = ALONE) -> None:
        super().__init__()
        self._parallel = parallel
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config.hidden_size, config.intermediate_size, "silu")
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        mixed = self._parallel.all_reduce(self.self_attn(self.input_layernorm(x), cos, sin, attention))
        x, normed = self.post_attention_layernorm.add(x, mixed)
        return x + self._parallel.all_reduce(self.mlp(normed))

    def described(self) -> LayerWeights | None:
        """Return the layer as data; ``None`` if it is sharded, or a weight is in a layout of its own."""
        attention = self.self_attn
        qkv, output, dense = matrix_of(attention.qkv_proj), matrix_of(attention.o_proj), dense_matrices(self.mlp)
        if self._parallel.size > 1 or qkv is None or output is None or dense is None:
            return None
        norms = self.input_layernorm.weight.detach(), self.post_attention_layernorm.weight.detach()
        return LayerWeights(*norms, None, qkv, output, dense)


class Decoder(nn.Module):
    """Embedding, layers, norm. ``embedding_size``: the width of the embedding, by default the decoder's."""

    def __init__(self, config: DecoderConfig, embedding_size: int | None, parallel: TensorParallel) -> None:
        super().__init__()
        self.embed_tokens = embedding(config.vocab_size, embedding_size or config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, layer, parallel) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


def parts_of(
    config: DecoderConfig, embedding_size: int | None = None, parallel: TensorParallel = ALONE
) -> tuple[DecoderConfig, Decoder, Rotary, Callable[[], DecoderStack | None]]:
    """Return what :class:`omni_torch.runners.decoder_model.DecoderModel` is made of.

    Sharded, every rank has the whole embedding, so that hidden states are the same everywhere.
    """
    config = local_config(config, parallel)
    model = Decoder(config, embedding_size, parallel)
    return config, model, Rotary(config), partial(describe, config, model.layers, model.norm, DecoderLayer.described)
