"""The code predictor: predicts the remaining codes of a frame, one by one, from the talker's state and the frame's
first code.

It runs fifteen small forwards per 80 ms of sound, which is nine tenths of the speech time in the reference. Where a kernel of
``code_frames`` is installed, frames are one call. Elsewhere it has its own fast path: one batch for all requests, a preallocated
KV cache, and query/key norms, rotary positions and norm weights fused into two multiplications.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.api import DecodeCache
from omni_qwen3.config import DecoderConfig
from omni_qwen3.layer_weights import describe
from omni_qwen3.layers import DecoderLayer, Rotary
from omni_torch.api import (
    MOST_ROWS,
    CodeChoice,
    DecoderStep,
    FramePredictor,
    RMSNorm,
    code_frames,
    embedding,
    matrix_of,
)

Choose = Callable[[torch.Tensor, int], torch.Tensor]
"""``(logits [B, vocab], group) -> codes [B]``. Frames whose choice is a :class:`omni_torch.operations.code_frames.CodeChoice` may be
one call."""


class PredictorDecoder(nn.Module):
    """The predictor's layers, and an embedding for each group but the first."""

    def __init__(self, config: DecoderConfig, groups: int) -> None:
        super().__init__()
        self.codec_embedding = nn.ModuleList(
            [embedding(config.vocab_size, config.hidden_size) for _ in range(groups - 1)]
        )
        self.layers = nn.ModuleList([DecoderLayer(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class FrameState:
    """Memory that the steps of a frame share: keys and values of at most ``batch`` frames, and each layer's rotary factors.

    A normed head ``n``, weighted by ``w`` and rotated by ``(cos, sin)``, is ``n * (w cos) + swapped(n) * (w' sin)``, where ``w'`` are the
    weights with their halves swapped and the first negated. Both factors are known before the frame begins.
    """

    def __init__(self, predictor: CodePredictor, batch: int, like: torch.Tensor) -> None:
        config, groups = predictor.config, predictor.groups
        shape = (config.layers, batch, config.kv_heads, groups, config.head_dim)
        self.batch = batch
        self.tables: FrameTables | None = None
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        cos, sin = predictor.rotary(torch.arange(groups, device=like.device), torch.float32)
        self.straight, self.crossed = [], []
        for layer in predictor.model.layers:
            assert isinstance(layer, DecoderLayer)
            attention = layer.self_attn
            weights = torch.cat(
                [
                    attention.q_norm.weight.expand(config.heads, -1),
                    attention.k_norm.weight.expand(config.kv_heads, -1),
                ]
            ).float()  # [heads + kv_heads, head_dim]
            first, second = weights.chunk(2, dim=-1)
            self.straight.append((weights * cos).to(like.dtype))  # [groups, heads + kv_heads, head_dim]
            self.crossed.append((torch.cat([-second, first], dim=-1) * sin).to(like.dtype))


class FrameTables:
    """A :class:`FrameState` for kernels of whole steps: the cache of a frame is one block of as many positions as groups."""

    def __init__(self, predictor: CodePredictor, batch: int, like: torch.Tensor) -> None:
        config, groups = predictor.config, predictor.groups
        shape = (config.layers, batch * groups, config.kv_heads, config.head_dim)
        keys, values = like.new_zeros(shape), like.new_zeros(shape)
        device = like.device
        cos, sin = predictor.rotary(torch.arange(groups, device=device), like.dtype)
        pages = torch.arange(batch, dtype=torch.int32, device=device).unsqueeze(1)
        self._angles = [(cos[group].repeat(batch, 1), sin[group].repeat(batch, 1)) for group in range(groups)]
        self._caches = [
            DecodeCache(
                pages,
                torch.full((batch,), group + 1, dtype=torch.int32, device=device),
                groups,
                list(keys),
                list(values),
            )
            for group in range(groups)
        ]

    def at(self, position: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, DecodeCache]:
        """Return the angles and the cache of a position of the first ``rows`` frames."""
        cos, sin = self._angles[position]
        cache = self._caches[position]
        return cos[:rows], sin[:rows], cache._replace(pages=cache.pages[:rows], lengths=cache.lengths[:rows])


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
        self._state: FrameState | None = None
        self._decoder = DecoderStep(partial(describe, config, self.model.layers, self.model.norm), config.layers)
        self._whole: FramePredictor | None = None
        self._described = False

    def forward(
        self, hidden: torch.Tensor, first_embed: torch.Tensor, choose: Choose, state: FrameState | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Complete ``B`` frames.

        Args:
            hidden: ``[B, hidden]``, the talker's normed output that the first code was chosen from.
            first_embed: ``[B, hidden]``, the talker's embedding of the first code.
            choose: picks codes from logits; -1 where none can be picked.
            state: memory for at least ``B`` frames, not shared with other calls; ``None``: the predictor's own, which grows.

        Returns:
            ``[B, groups - 1]`` codes, and ``[B, hidden]``: the sum of the embeddings of all groups, the first included.
        """
        if isinstance(choose, CodeChoice) and state is None and (whole := self._described_for(hidden)) is not None:
            cos, sin = (each.flatten(1) for each in self.rotary(torch.arange(self.groups), hidden.dtype))
            return code_frames(
                hidden, first_embed, cos, sin, whole, choose.temperature, choose.uniforms, choose.top_k, choose.top_p
            )
        state = state or self._state_for(hidden)
        x = torch.stack([hidden, first_embed], dim=1)
        total = first_embed.clone()
        codes = hidden.new_empty(len(hidden), self.groups - 1, dtype=torch.int64)
        begin = 0
        for group in range(self.groups - 1):
            last = self._step(x, begin, state)
            codes[:, group] = choose(self.lm_head[group](last), group)
            # An index of -1 would end the process on a GPU; the caller checks the codes.
            embedded = self.model.codec_embedding[group](codes[:, group].clamp(min=0))
            total += embedded
            begin += x.shape[1]
            x = embedded.unsqueeze(1)
        return codes, total

    def _described_for(self, hidden: torch.Tensor) -> FramePredictor | None:
        """Return the predictor as data, if a kernel completes frames like these."""
        if len(hidden) > MOST_ROWS or not code_frames.replaced(hidden.device.type, hidden.dtype):
            return None
        if not self._described:
            stack, matrices = self._decoder.stack, [*map(matrix_of, (*self.lm_head, *self.model.codec_embedding))]
            found = [each for each in matrices if each is not None]
            if stack is not None and len(found) == len(matrices):
                heads, embeddings = found[: self.groups - 1], found[self.groups - 1 :]
                self._whole = FramePredictor(stack, heads, [each.weight for each in embeddings])
            self._described = True
        return self._whole

    def _state_for(self, hidden: torch.Tensor) -> FrameState:
        """Return the predictor's own state, made larger if more frames come at once than before."""
        state = self._state
        if state is None or state.batch < len(hidden) or state.keys.dtype != hidden.dtype:
            state = self._state = FrameState(self, len(hidden), hidden)
        return state

    def _step(self, x: torch.Tensor, begin: int, state: FrameState) -> torch.Tensor:
        """Compute positions ``begin`` to ``begin + t`` of ``B`` frames, ``[B, t, hidden]``; return the last one's normalised output."""
        batch, steps, _ = x.shape
        config, end = self.config, begin + steps
        if self._decoder.fits(x[:, 0]):
            if state.tables is None:
                state.tables = FrameTables(self, state.batch, x)
            for position in range(begin, end):
                cos, sin, cache = state.tables.at(position, batch)
                (last,) = self._decoder.compute(x[:, position - begin], cos, sin, cache)
            return last
        for number, layer in enumerate(self.model.layers):
            assert isinstance(layer, DecoderLayer)
            attention = layer.self_attn
            heads = attention.qkv_proj(layer.input_layernorm(x)).view(batch, steps, -1, config.head_dim)
            turned, value = heads.split([config.heads + config.kv_heads, config.kv_heads], dim=2)
            normed = F.rms_norm(turned, (config.head_dim,), eps=config.norm_eps)
            crossed = normed.roll(config.head_dim // 2, dims=-1) * state.crossed[number][begin:end]
            turned = crossed.addcmul_(normed, state.straight[number][begin:end])
            keys, values = state.keys[number, :batch], state.values[number, :batch]
            keys[:, :, begin:end] = turned[:, :, config.heads :].transpose(1, 2)
            values[:, :, begin:end] = value.transpose(1, 2)
            mixed = self._attend(turned[:, :, : config.heads], keys[:, :, :end], values[:, :, :end])
            x, normed = layer.post_attention_layernorm.add(x, attention.o_proj(mixed))
            x = x + layer.mlp(normed)
        output: torch.Tensor = self.model.norm(x[:, -1])
        return output

    def _attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend with ``[B, t, heads, head_dim]`` to ``[B, kv_heads, n, head_dim]``; return ``[B, t, heads * head_dim]``."""
        batch, steps, heads, width = query.shape
        if steps == 1:
            # With a single query per frame, the query heads of a key head become rows, and no mask is needed.
            rows = query.reshape(batch, keys.shape[1], -1, width)
            return F.scaled_dot_product_attention(rows, keys, values).reshape(batch, 1, -1)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, is_causal=True, enable_gqa=heads > keys.shape[1]
        )
        return mixed.transpose(1, 2).reshape(batch, steps, -1)
