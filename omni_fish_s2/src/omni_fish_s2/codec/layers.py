"""The codec's blocks: causal convolutions, periodic activations, windowed transformers. All read and update a memory.

A layer's memory covers its context before the chunk: a convolution keeps as many columns as its kernel looks back, a
transformer the keys and values of its window.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_fish_s2.codec.memory import Memory
from omni_fish_s2.layers import rotary, rotate
from omni_torch import api as operations
from omni_torch.api import RMSNorm

HEAD_DIM = 64
"""Width of an attention head in every transformer of the codec."""

ROPE_BASE = 10_000.0
NORM_EPS = 1e-5


class CausalConv(nn.Module):
    """``[B, in, T]`` to ``[B, out, T / stride]``; ``T`` is a multiple of the stride."""

    def __init__(
        self, inner: int, outer: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel, stride=stride, dilation=dilation, groups=groups)
        self.reach = (kernel - 1) * dilation + 1 - stride

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        return self.conv(memory.join(x, self.reach) if self.reach else x)

    def layer(self, before: Snake | None = None) -> operations.Convolution:
        """Return the layer for :func:`omni_torch.operations.sound_stack.decode_sound`, behind an activation."""
        assert self.conv.bias is not None
        snake = None if before is None else before.layer()
        return operations.Convolution(self.conv.weight, self.conv.bias, self.conv.dilation[0], snake)


class CausalUpsampling(nn.Module):
    """The weights of a transposed convolution, ``[B, in, T]`` to ``[B, out, T * stride]``; its kernel is once or twice the stride."""

    def __init__(self, inner: int, outer: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inner, outer, kernel, stride=stride)
        self.stride = stride

    def layer(self, before: Snake | None = None) -> operations.Upsampling:
        """Return the layer, behind an activation."""
        assert self.conv.bias is not None
        return operations.Upsampling(
            self.conv.weight, self.conv.bias, self.stride, None if before is None else before.layer()
        )


class Snake(nn.Module):
    """Computes ``x + sin(alpha x)^2 / alpha``, with an alpha per channel (Ziyin et al., 2020).

    It differs from the operation ``snake_beta``, whose two parameters per channel are logarithms.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # In place if possible: these are the codec's largest tensors, and the cost is in reading them.
        wave = (self.alpha * x).sin_()
        return torch.addcmul(x, (self.alpha + 1e-9).reciprocal(), wave.mul_(wave))

    def layer(self) -> operations.Snake:
        """Return the activation for :func:`omni_torch.operations.sound_stack.decode_sound`."""
        return operations.Snake(self.alpha, self.alpha, logarithms=False)


class ResidualUnit(nn.Module):
    """Two convolutions, the first dilated, around a residual."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                Snake(channels),
                CausalConv(channels, channels, 7, dilation=dilation),
                Snake(channels),
                CausalConv(channels, channels, 1),
            ]
        )

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        first, dilated, second, mixing = self.block
        return x + mixing(second(dilated(first(x), memory)), memory)

    def layer(self) -> operations.Residual:
        """Return the layer for :func:`omni_torch.operations.sound_stack.decode_sound`."""
        parts: Any = self.block
        first, dilated, second, mixing = parts
        return operations.Residual(dilated.layer(first), mixing.layer(second))


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and two pointwise layers around a residual (Liu et al., 2022), ``[B, channels, T]``."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, inner)
        self.pwconv2 = nn.Linear(inner, channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        hidden = self.norm(self.dwconv(x, memory).transpose(1, 2))
        hidden = self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return x + (self.gamma * hidden).transpose(1, 2)

    def layer(self) -> operations.ConvNeXt:
        """Return the layer for :func:`omni_torch.operations.sound_stack.decode_sound`."""
        mixing, wide, narrow = self.dwconv.layer(), self.pwconv1, self.pwconv2
        norm = self.norm.weight, self.norm.bias
        pointwise = wide.weight, wide.bias, narrow.weight, narrow.bias
        return operations.ConvNeXt(mixing.weight, mixing.bias, *norm, *pointwise, self.gamma, self.norm.eps)


class _Scale(nn.Module):
    """Multiplies each channel by a learned factor."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gamma


class _Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)


class _FeedForward(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, inner, bias=False)
        self.w2 = nn.Linear(inner, dim, bias=False)
        self.w3 = nn.Linear(dim, inner, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class _TransformerLayer(nn.Module):
    def __init__(self, dim: int, inner: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attention = _Attention(dim)
        self.feed_forward = _FeedForward(dim, inner)
        self.attention_norm = RMSNorm(dim, NORM_EPS)
        self.ffn_norm = RMSNorm(dim, NORM_EPS)
        self.attention_layer_scale = _Scale(dim)
        self.ffn_layer_scale = _Scale(dim)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor, memory: Memory
    ) -> torch.Tensor:
        mixed = self.attention_layer_scale(self._attend(self.attention_norm(x), cos, sin, mask, memory))
        x, normed = self.ffn_norm.add(x, mixed)
        return x + self.ffn_layer_scale(self.feed_forward(normed))

    def _attend(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor, memory: Memory
    ) -> torch.Tensor:
        query, key, value = self.attention.wqkv(x).unflatten(-1, (3, -1, HEAD_DIM)).unbind(2)
        query, key = rotate(query, cos, sin).transpose(1, 2), rotate(key, cos, sin).transpose(1, 2)
        keys = memory.join(key, self.window - 1, dim=-2)
        values = memory.join(value.transpose(1, 2), self.window - 1, dim=-2)
        mixed = F.scaled_dot_product_attention(query, keys, values, mask)
        return self.attention.wo(mixed.transpose(1, 2).flatten(2))


class WindowTransformer(nn.Module):
    """A causal transformer with sliding-window attention over the last ``window`` positions, ``[B, dim, T]``."""

    def __init__(self, dim: int, inner: int, layers: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.layers = nn.ModuleList([_TransformerLayer(dim, inner, window) for _ in range(layers)])
        self.norm = RMSNorm(dim, NORM_EPS)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        x = x.transpose(1, 2)
        count = x.shape[1]
        starts = torch.tensor(memory.advance(count), device=x.device).unsqueeze(1)
        new = torch.arange(count, device=x.device)
        cos, sin = rotary(starts + new, HEAD_DIM, ROPE_BASE)
        mask = self._mask(starts, new)
        for layer in self.layers:
            x = layer(x, cos, sin, mask, memory)
        return self.norm(x).transpose(1, 2)

    def _mask(self, starts: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return the mask ``[B, 1, T, window - 1 + T]`` over the kept positions, then the new ones; it excludes those
        before the stream's start.
        """
        columns = torch.arange(self.window - 1 + len(new), device=new.device) - (self.window - 1)
        seen = (columns <= new.unsqueeze(1)) & (columns > new.unsqueeze(1) - self.window)
        exists = starts + columns >= 0
        return (seen.unsqueeze(0) & exists.unsqueeze(1)).unsqueeze(1)
