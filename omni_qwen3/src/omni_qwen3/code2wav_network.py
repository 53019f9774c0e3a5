"""The network of the vocoder: a causal transformer with a sliding window over codec frames, then convolutions that upsample to samples.

The names of the parameters are those of the released checkpoint, with query, key and value, and gate and up joined. For inference only.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field, frozen
from torch import nn

from omni_qwen3.encoder_config import VocoderConfig
from omni_qwen3.layers import MLP
from omni_torch.api import (
    ConvNeXt,
    Convolution,
    Residual,
    RMSNorm,
    Snake,
    SoundStack,
    decode_sound,
    embedding,
    rotary,
)
from omni_torch.api import (
    Upsampling as UpsamplingLayer,
)

KERNEL = 7
"""Taps of the convolutions that are neither transposed nor of one tap."""

DILATIONS = (1, 3, 9)
"""Of the three residual units behind each transposed convolution of the decoder."""

NORM_EPS = 1e-6


@define(eq=False)
class Window:
    """The keys and values of the frames that the next ones attend to, ``[kv_heads, frames, head_dim]`` for each layer.

    Attributes:
        frames: how many frames have been transformed, those that have left the window included.
    """

    frames: int = 0
    keys: list[torch.Tensor] = field(factory=list)
    values: list[torch.Tensor] = field(factory=list)


@frozen(eq=False)
class Batch:
    """The next frames of several utterances, packed.

    Attributes:
        cos, sin: of each frame's rotary position, ``[frames, 1, head_dim]``.
        counts: frames of each utterance.
        windows: of each.
        masks: which frames, those of the window and then the new ones, each new frame of an utterance attends to.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    counts: list[int]
    windows: list[Window]
    masks: list[torch.Tensor]


class Attention(nn.Module):
    """Causal attention over the window."""

    def __init__(self, config: VocoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.heads, config.kv_heads, config.head_dim
        self.window = config.window
        width, bias = (self.heads + 2 * self.kv_heads) * self.head_dim, config.attention_bias
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        projected = self.qkv_proj(x).unflatten(1, (-1, self.head_dim))
        turned, value = projected.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        query, key = rotary(turned, batch.cos, batch.sin).split([self.heads, self.kv_heads], dim=1)
        queries, keys, values = (each.transpose(0, 1).split(batch.counts, dim=1) for each in (query, key, value))
        each_utterance = zip(queries, keys, values, batch.windows, batch.masks, strict=True)
        mixed = [self._attend(*parts) for parts in each_utterance]
        return self.o_proj(torch.cat(mixed, dim=1).transpose(0, 1).flatten(1))

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: Window, mask: torch.Tensor
    ) -> torch.Tensor:
        """Attend with the frames of one utterance, ``[heads, frames, head_dim]``, and move its window."""
        if self.layer < len(window.keys):
            key = torch.cat([window.keys[self.layer], key], dim=1)
            value = torch.cat([window.values[self.layer], value], dim=1)
        else:
            window.keys.append(key)
            window.values.append(value)
        # Copies, so that the rows before the window are freed.
        kept = min(key.shape[1], self.window - 1)
        window.keys[self.layer] = key[:, key.shape[1] - kept :].clone()
        window.values[self.layer] = value[:, value.shape[1] - kept :].clone()
        return F.scaled_dot_product_attention(
            query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), mask, enable_gqa=self.heads != self.kv_heads
        )[0]


class Scale(nn.Module):
    """Multiplies each channel by a learned factor (Touvron et al., 2021)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each behind a norm, scaled, and around a residual."""

    def __init__(self, config: VocoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config.hidden_size, config.intermediate_size, config.activation)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn_layer_scale = Scale(config.hidden_size)
        self.mlp_layer_scale = Scale(config.hidden_size)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        mixed = self.self_attn(self.input_layernorm(x), batch)
        x, normed = self.post_attention_layernorm.add(x, self.self_attn_layer_scale(mixed))
        return x + self.mlp_layer_scale(self.mlp(normed))


class FrameTransformer(nn.Module):
    """The transformer over frames."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TransformerLayer(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self._window, self._theta, self._head_dim = config.window, config.rope_theta, config.head_dim

    def forward(self, x: torch.Tensor, counts: list[int], windows: list[Window]) -> torch.Tensor:
        """Transform the next frames of several utterances, ``[frames, hidden]``, so many of each."""
        places = [
            torch.arange(window.frames, window.frames + count, device=x.device)
            for window, count in zip(windows, counts, strict=True)
        ]
        cos, sin = self._rotations(torch.cat(places), x.dtype)
        masks = [self._mask(place, window) for place, window in zip(places, windows, strict=True)]
        batch = Batch(cos, sin, counts, windows, masks)
        for layer in self.layers:
            x = layer(x, batch)
        for window, count in zip(windows, counts, strict=True):
            window.frames += count
        hidden: torch.Tensor = self.norm(x)
        return hidden

    def _rotations(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(0, self._head_dim, 2, dtype=torch.float32, device=positions.device)
        angles = positions.float().unsqueeze(1) / self._theta ** (steps / self._head_dim)
        angles = torch.cat([angles, angles], dim=1).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _mask(self, places: torch.Tensor, window: Window) -> torch.Tensor:
        """Return a mask of :class:`Batch`, ``[new, kept + new]``."""
        kept = min(window.frames, self._window - 1)
        seen = torch.arange(window.frames - kept, window.frames + len(places), device=places.device)
        back = places.unsqueeze(1) - seen
        return (back >= 0) & (back < self._window)


class CausalConv(nn.Module):
    """The weights of a convolution with zeros before the first column: ``[B, in, T]`` to ``[B, out, T]``."""

    def __init__(self, inner: int, outer: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel, dilation=dilation, groups=groups)
        self.dilation = dilation

    def layer(self, before: SnakeBeta | None = None) -> Convolution:
        """Return the layer, behind an activation."""
        assert self.conv.bias is not None
        snake = None if before is None else before.layer()
        return Convolution(self.conv.weight, self.conv.bias, self.dilation, snake)


class Upsampling(nn.Module):
    """The weights of a transposed convolution. Where its kernel is longer than the stride, the columns that overlap are cut off at both
    ends.
    """

    def __init__(self, inner: int, outer: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inner, outer, kernel, stride=stride)
        self.rate, self.trims = stride, kernel > stride

    def layer(self, before: SnakeBeta | None = None) -> UpsamplingLayer:
        """Return the layer, behind an activation."""
        assert self.conv.bias is not None
        snake = None if before is None else before.layer()
        return UpsamplingLayer(self.conv.weight, self.conv.bias, self.rate, snake, self.trims)


class ConvNeXtBlock(nn.Module):
    """The weights of a depthwise convolution and two pointwise layers around a residual (Liu et al., 2022), ``[B, channels, T]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, KERNEL, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def layer(self) -> ConvNeXt:
        """Return the layer."""
        mixing = self.dwconv.layer()
        wide, narrow = self.pwconv1, self.pwconv2
        norm = self.norm.weight, self.norm.bias
        return ConvNeXt(
            mixing.weight, mixing.bias, *norm, wide.weight, wide.bias, narrow.weight, narrow.bias, self.gamma, NORM_EPS
        )


class SnakeBeta(nn.Module):
    """The parameters of a periodic activation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def layer(self) -> Snake:
        """Return the activation."""
        return Snake(self.alpha, self.beta)


class ResidualUnit(nn.Module):
    """The weights of two activations, each with a convolution behind it, around a residual."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.act2 = SnakeBeta(channels), SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, KERNEL, dilation=dilation)
        self.conv2 = CausalConv(channels, channels, 1)

    def layer(self) -> Residual:
        """Return the layer."""
        return Residual(self.conv1.layer(self.act1), self.conv2.layer(self.act2))


class DecoderBlock(nn.Module):
    """The weights of layers that upsample by ``rate`` and halve the width."""

    def __init__(self, inner: int, outer: int, rate: int) -> None:
        super().__init__()
        units = [ResidualUnit(outer, dilation) for dilation in DILATIONS]
        self.block = nn.ModuleList([SnakeBeta(inner), Upsampling(inner, outer, 2 * rate, rate), *units])

    def layers(self) -> list[UpsamplingLayer | Residual]:
        """Return the layers."""
        parts: Any = self.block
        activation, raising, *units = parts
        return [raising.layer(activation), *(unit.layer() for unit in units)]


class Code2Wav(nn.Module):
    """The vocoder: codes to samples in two steps, of which only the first has a memory."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        hidden, widths = config.hidden_size, [config.decoder_size >> level for level in range(len(config.rates) + 1)]
        self.pre_transformer = FrameTransformer(config)
        self.code_embedding = embedding(config.codebooks * config.codebook_size, hidden)
        self.upsample = nn.ModuleList(
            [nn.Sequential(Upsampling(hidden, hidden, rate, rate), ConvNeXtBlock(hidden)) for rate in config.upsampling]
        )
        blocks = [DecoderBlock(*each) for each in zip(widths, widths[1:], config.rates, strict=False)]
        ends = [SnakeBeta(widths[-1]), CausalConv(widths[-1], 1, KERNEL)]
        self.decoder = nn.ModuleList([CausalConv(hidden, widths[0], KERNEL), *blocks, *ends])
        self.samples_per_frame = prod(config.rates) * prod(config.upsampling)
        self._codebooks, self._codebook_size = config.codebooks, config.codebook_size

    def transform(self, frames: list[torch.Tensor], windows: list[Window]) -> list[torch.Tensor]:
        """Transform the next frames of several utterances: ``[frames, codebooks]`` int64 to ``[frames, hidden]`` each."""
        counts, codes = [len(each) for each in frames], torch.cat(frames)
        first = torch.arange(self._codebooks, device=codes.device) * self._codebook_size
        embedded = self.code_embedding(codes + first).mean(1)
        return list(self.pre_transformer(embedded, counts, windows).split(counts))

    @cached_property
    def sound(self) -> SoundStack:
        """The convolutions, of the weights that the modules have when it is first read."""
        stages: Any = self.upsample
        parts: Any = self.decoder
        raised = [part.layer() for stage in stages for part in stage]
        first, *blocks, activation, last = parts
        return SoundStack(
            [*raised, first.layer(), *(each for block in blocks for each in block.layers()), last.layer(activation)]
        )

    def synthesize(self, hidden: torch.Tensor, memory: torch.Tensor | None = None, begun: bool = False) -> torch.Tensor:
        """Upsample ``[B, hidden, T]`` to samples from -1 to 1, ``[B, samples]``; the end that needs the next frame is not made.

        Args:
            memory: of the streams' convolutions, which is written (:meth:`SoundStack.new_memory`); by default that of a beginning.
            begun: True if the memory is of frames before.
        """
        if memory is None:
            memory = self.sound.new_memory(len(hidden), hidden)
        return decode_sound(hidden, memory, begun, self.sound).clamp(min=-1, max=1)[:, 0]
