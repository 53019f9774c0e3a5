"""The codec's decoder: codes to what they stand for, a transformer over frames, and convolutions that upsample to samples.

The names of the parameters are those of the released checkpoint, with query, key and value, and gate and up joined. For inference only.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field
from torch import nn

from omni_qwen3_tts.codec.config import CodecConfig
from omni_qwen3_tts.codec.transformer import FrameTransformer, Window
from omni_torch.api import ConvNeXt, Convolution, Residual, Snake, SoundStack, decode_sound
from omni_torch.api import Upsampling as UpsamplingLayer

KERNEL = 7
"""Taps of the convolutions that are neither transposed nor of one tap."""

BEFORE = 3
"""Taps of the convolution before the transformer."""

DILATIONS = (1, 3, 9)
"""Of the three residual units behind each transposed convolution of the decoder."""

NORM_EPS, USAGE_EPS = 1e-6, 1e-5


@define(eq=False)
class Utterance:
    """The decoder state of one request.

    Attributes:
        window: of the transformer, over the frames decoded.
        before: ``[BEFORE - 1, codebook_dim]``, what the last frames' codes stand for; ``None`` before the first chunk.
        memory: ``[memory_size]``, the last inputs of the convolutions; ``None`` before the first chunk.
    """

    window: Window = field(factory=Window)
    before: torch.Tensor | None = None
    memory: torch.Tensor | None = None


class Codebook(nn.Module):
    """The entries of a codebook, as sums of what was assigned to each, and how much that was."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embedding_sum = nn.Parameter(torch.empty(size, width))

    def entries(self) -> torch.Tensor:
        """Return them, ``[size, width]``."""
        return self.embedding_sum / self.cluster_usage.clamp(min=USAGE_EPS)[:, None]


class _Layer(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, width)


class _Layers(nn.Module):
    def __init__(self, count: int, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Layer(size, width) for _ in range(count)])


class Quantizer(nn.Module):
    """Codebooks whose entries are added, and then projected."""

    def __init__(self, count: int, size: int, width: int) -> None:
        super().__init__()
        self.vq = _Layers(count, size, width // 2)
        self.output_proj = nn.Conv1d(width // 2, width, 1, bias=False)

    @cached_property
    def table(self) -> torch.Tensor:
        """The entries of all codebooks, ``[count, size, width / 2]``."""
        layers: Any = self.vq.layers
        return torch.stack([each._codebook.entries() for each in layers])

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return what codes stand for, ``[frames, count]`` int64 to ``[frames, width]``."""
        numbers = torch.arange(codes.shape[1], device=codes.device)
        summed = self.table[numbers, codes].sum(1)
        return F.linear(summed, self.output_proj.weight[:, :, 0])


class SplitQuantizer(nn.Module):
    """The first codebook, and all others, projected apart."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.rvq_first = Quantizer(1, config.codebook_size, config.codebook_dim)
        self.rvq_rest = Quantizer(config.codebooks - 1, config.codebook_size, config.codebook_dim)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.rvq_first(codes[:, :1])
        return first + self.rvq_rest(codes[:, 1:])


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
    """The weights of a transposed convolution, of which the columns that need the next frame come with it."""

    def __init__(self, inner: int, outer: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inner, outer, kernel, stride=stride)
        self.rate = stride

    def layer(self, before: SnakeBeta | None = None) -> UpsamplingLayer:
        """Return the layer, behind an activation."""
        assert self.conv.bias is not None
        return UpsamplingLayer(
            self.conv.weight, self.conv.bias, self.rate, None if before is None else before.layer(), False
        )


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
        mixing, wide, narrow = self.dwconv.layer(), self.pwconv1, self.pwconv2
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


class CodecDecoder(nn.Module):
    """Codes to samples, in two steps of which each has its memory."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        latent, widths = config.latent, [config.decoder_size >> level for level in range(len(config.rates) + 1)]
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, latent, BEFORE)
        self.pre_transformer = FrameTransformer(config)
        self.upsample = nn.ModuleList(
            [nn.Sequential(Upsampling(latent, latent, rate, rate), ConvNeXtBlock(latent)) for rate in config.upsampling]
        )
        blocks = [DecoderBlock(*each) for each in zip(widths, widths[1:], config.rates, strict=False)]
        ends = [SnakeBeta(widths[-1]), CausalConv(widths[-1], 1, KERNEL)]
        self.decoder = nn.ModuleList([CausalConv(latent, widths[0], KERNEL), *blocks, *ends])

    def transform(self, frames: list[torch.Tensor], utterances: list[Utterance]) -> list[torch.Tensor]:
        """Transform the next frames of several utterances: ``[frames, codebooks]`` int64 to ``[frames, latent]`` each."""
        counts = [len(each) for each in frames]
        seen = []
        for utterance, new in zip(utterances, self.quantizer(torch.cat(frames)).split(counts), strict=True):
            before = new.new_zeros(BEFORE - 1, new.shape[1]) if utterance.before is None else utterance.before
            rows = torch.cat([before, new])
            utterance.before = rows[-(BEFORE - 1) :].clone()
            seen.append(torch.cat([rows[tap : tap + len(new)] for tap in range(BEFORE)], dim=1))
        weight = self.pre_conv.conv.weight.transpose(1, 2).flatten(1)  # the taps in the order of the rows
        mixed = F.linear(torch.cat(seen), weight, self.pre_conv.conv.bias)
        windows = [utterance.window for utterance in utterances]
        return list(self.pre_transformer(mixed, counts, windows).split(counts))

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

    def synthesize(self, hidden: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Upsample ``[B, latent, T]`` to samples from -1 to 1, ``[B, samples]``.

        Args:
            memory: of the streams' convolutions, which is written (:meth:`SoundStack.new_memory`).
        """
        # Zeros before the first column are what a beginning has, so that nothing of it is left out.
        return decode_sound(hidden, memory, True, self.sound).clamp(min=-1, max=1)[:, 0]
