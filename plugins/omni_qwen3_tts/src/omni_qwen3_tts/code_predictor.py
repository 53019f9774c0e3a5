"""The code predictor: completes a frame, whose first code the talker chose, code by code with a small decoder.

Positions of a frame: the talker's state, the first code, the second, and so on; each is read through a projection where the
predictor is narrower than the talker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from omni_qwen3_tts.config import DecoderConfig
from omni_qwen3_tts.layers import DecoderLayer, Rotary, describe
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
    """The predictor's layers, and an embedding, as wide as the talker, for each group but the first."""

    def __init__(self, config: DecoderConfig, groups: int, width: int) -> None:
        super().__init__()
        self.codec_embedding = nn.ModuleList([embedding(config.vocab_size, width) for _ in range(groups - 1)])
        self.layers = nn.ModuleList([DecoderLayer(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class FrameState:
    """Memory that the steps of a frame share: keys and values of at most ``batch`` frames, and the rotary factors."""

    def __init__(self, predictor: CodePredictor, batch: int, like: torch.Tensor) -> None:
        config, groups = predictor.config, predictor.groups
        shape = (config.layers, batch, config.kv_heads, groups, config.head_dim)
        self.batch = batch
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self.cos, self.sin = predictor.rotary(torch.arange(groups, device=like.device), torch.float32)
        self.weights = []
        for layer in predictor.model.layers:
            assert isinstance(layer, DecoderLayer)
            self.weights.append(layer.self_attn.head_weights().float())


class CodePredictor(nn.Module):
    """Predicts groups 1 to ``groups - 1`` of a frame.

    Args:
        width: of the talker.
    """

    def __init__(self, config: DecoderConfig, groups: int, width: int) -> None:
        super().__init__()
        self.model = PredictorDecoder(config, groups, width)
        self.lm_head = nn.ModuleList(
            [nn.Linear(config.hidden_size, config.vocab_size, bias=False) for _ in range(groups - 1)]
        )
        self.is_narrow = width != config.hidden_size
        if self.is_narrow:
            self.small_to_mtp_projection = nn.Linear(width, config.hidden_size)
        self.rotary = Rotary(config.head_dim, config.rope_theta)
        self.config, self.groups = config, groups
        self._state: FrameState | None = None
        self._decoder = DecoderStep(partial(describe, config, self.model.layers, self.model.norm), config.layers)
        self._whole: FramePredictor | None = None
        self._described = False
        self._read: list[torch.Tensor] = []

    def forward(
        self, hidden: torch.Tensor, first_embed: torch.Tensor, choose: Choose, state: FrameState | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Complete ``B`` frames.

        Args:
            hidden: ``[B, width]``, the talker's normed output that the first code was chosen from.
            first_embed: ``[B, width]``, the talker's embedding of the first code.
            choose: picks codes from logits; -1 where none can be picked.
            state: memory for at least ``B`` frames, not shared with other calls; ``None``: the predictor's own, which grows.

        Returns:
            ``[B, groups - 1]`` codes, and ``[B, width]``: the sum of the embeddings of all groups, the first included.
        """
        whole = self._described_for(hidden) if isinstance(choose, CodeChoice) and state is None else None
        if whole is not None:
            assert isinstance(choose, CodeChoice)
            cos, sin = (each.flatten(1) for each in self.rotary(torch.arange(self.groups), hidden.dtype))
            start, first = self._projected(hidden), self._projected(first_embed)
            settings = choose.temperature, choose.uniforms, choose.top_k, choose.top_p
            codes, total = code_frames(start, first, cos, sin, whole, *settings)
            return codes, first_embed + self.embedded(codes) if self.is_narrow else total
        state, tables = state or self._state_for(hidden), self._tables()
        x = torch.stack([self._projected(hidden), self._projected(first_embed)], dim=1)
        codes = hidden.new_empty(len(hidden), self.groups - 1, dtype=torch.int64)
        begin = 0
        for group in range(self.groups - 1):
            last = self._step(x, begin, state)
            codes[:, group] = choose(self.lm_head[group](last), group)
            begin += x.shape[1]
            # An index of -1 would end the process on a GPU; the caller checks the codes.
            x = F.embedding(codes[:, group].clamp(min=0), tables[group]).to(hidden.dtype).unsqueeze(1)
        return codes, first_embed + self.embedded(codes)

    def embedded(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the sum of the embeddings of the codes of every group but the first: ``[n, groups - 1]`` to ``[n, width]``."""
        total: torch.Tensor | None = None
        for group, each in enumerate(self.model.codec_embedding):
            found = each(codes[:, group].clamp(min=0))
            total = found if total is None else total + found
        assert total is not None
        return total

    def _projected(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_narrow:
            return x
        projected: torch.Tensor = self.small_to_mtp_projection(x)
        return projected

    def _tables(self) -> list[torch.Tensor]:
        """Return the embeddings as the decoder reads them, ``[vocab, hidden]`` each: projected once, not at each step."""
        if not self._read:
            matrices = [matrix_of(each) for each in self.model.codec_embedding]
            tables = [each.weight for each in matrices if each is not None]  # embeddings have no layout of their own
            dtype = self.model.norm.weight.dtype
            self._read = [self._projected(each.to(dtype)) for each in tables] if self.is_narrow else tables
        return self._read

    def _described_for(self, hidden: torch.Tensor) -> FramePredictor | None:
        """Return the predictor as data, if a kernel completes frames like these."""
        if len(hidden) > MOST_ROWS or not code_frames.replaced(hidden.device.type, hidden.dtype):
            return None
        if not self._described:
            stack, heads = self._decoder.stack, [matrix_of(each) for each in self.lm_head]
            found = [each for each in heads if each is not None]
            if stack is not None and len(found) == len(heads):
                self._whole = FramePredictor(stack, found, self._tables())
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
        cos, sin = state.cos[begin:end], state.sin[begin:end]
        for number, layer in enumerate(self.model.layers):
            assert isinstance(layer, DecoderLayer)
            attention = layer.self_attn
            heads = attention.qkv_proj(layer.input_layernorm(x)).view(batch, steps, -1, config.head_dim)
            turned, value = heads.split([config.heads + config.kv_heads, config.kv_heads], dim=2)
            normed = F.rms_norm(turned.float(), (config.head_dim,), eps=config.norm_eps).to(x.dtype)
            normed = (normed * state.weights[number].to(x.dtype)).float()
            first, second = normed.chunk(2, dim=-1)
            turned = (normed * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
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
