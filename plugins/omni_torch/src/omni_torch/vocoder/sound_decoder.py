"""Convolutions that upsample codec frames to samples, as the decoders of Qwen3-Omni's and Qwen3-TTS's codecs have.

The names of the parameters are those of the released checkpoints. For inference only: the modules hold the weights, and
:func:`~omni_torch.operations.sound_stack.decode_sound` computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import nn

from omni_torch.operations.sound_stack import ConvNeXt, Convolution, Residual, Snake, SoundStack
from omni_torch.operations.sound_stack import Upsampling as UpsamplingLayer

KERNEL = 7
"""Taps of the convolutions that are neither transposed nor of one tap."""

DILATIONS = (1, 3, 9)
"""Of the three residual units behind each transposed convolution of the decoder."""

NORM_EPS = 1e-6


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
    """The weights of a transposed convolution.

    Args:
        trims: the columns that overlap are cut off at both ends; else those that need the next frame come with it.
    """

    def __init__(self, inner: int, outer: int, kernel: int, stride: int, trims: bool = False) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inner, outer, kernel, stride=stride)
        self.rate, self.trims = stride, trims

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

    def __init__(self, inner: int, outer: int, rate: int, trims: bool) -> None:
        super().__init__()
        units = [ResidualUnit(outer, dilation) for dilation in DILATIONS]
        self.block = nn.ModuleList([SnakeBeta(inner), Upsampling(inner, outer, 2 * rate, rate, trims), *units])

    def layers(self) -> list[UpsamplingLayer | Residual]:
        """Return the layers."""
        parts: Any = self.block
        activation, raising, *units = parts
        return [raising.layer(activation), *(unit.layer() for unit in units)]


class SoundDecoder(nn.Module):
    """The base of networks that end in such convolutions: ``upsample`` and ``decoder`` are their parameters.

    Args:
        hidden: channels of a frame.
        width: of the decoder's first block; each block halves it.
        upsampling: factors of the layers before the decoder; ``rates``: of its blocks.
        trims: as of :class:`Upsampling`, in the decoder's blocks.
    """

    def __init__(
        self, hidden: int, width: int, upsampling: Sequence[int], rates: Sequence[int], *, trims: bool
    ) -> None:
        super().__init__()
        widths = [width >> level for level in range(len(rates) + 1)]
        self.upsample = nn.ModuleList(
            [nn.Sequential(Upsampling(hidden, hidden, rate, rate), ConvNeXtBlock(hidden)) for rate in upsampling]
        )
        blocks = [DecoderBlock(*each, trims) for each in zip(widths, widths[1:], rates, strict=False)]
        ends = [SnakeBeta(widths[-1]), CausalConv(widths[-1], 1, KERNEL)]
        self.decoder = nn.ModuleList([CausalConv(hidden, widths[0], KERNEL), *blocks, *ends])
        self.samples_per_frame = prod(rates) * prod(upsampling)

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
