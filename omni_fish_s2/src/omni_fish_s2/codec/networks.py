"""The codec's two networks: the decoder (codes to sound) and the encoder (sound to codes).

Parameters have the same names as in ``codec.pth``, with weight normalisation folded in.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_fish_s2.codec.config import CodecConfig
from omni_fish_s2.codec.layers import (
    CausalConv,
    CausalUpsampling,
    ConvNeXtBlock,
    ResidualUnit,
    Snake,
    WindowTransformer,
)
from omni_fish_s2.codec.memory import Memory
from omni_torch.api import Layer, SoundStack, decode_sound, embedding

DILATIONS = (1, 3, 9)
QUANTIZER_WINDOW = 128
ENCODER_WINDOW = 512


class _Codebook(nn.Module):
    """One vector quantiser: codebook entries, and projections to and from their width."""

    def __init__(self, config: CodecConfig, size: int, *, encodes: bool) -> None:
        super().__init__()
        self.codebook = embedding(size, config.codebook_dim)
        self.out_proj = nn.Conv1d(config.codebook_dim, config.latent, 1)
        if encodes:
            self.in_proj = nn.Conv1d(config.latent, config.codebook_dim, 1)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Decode ``[B, T]`` codes to ``[B, latent, T]``."""
        return self.out_proj(self.codebook(codes).transpose(1, 2))

    def encode(self, latent: torch.Tensor) -> torch.Tensor:
        """Encode ``[B, latent, T]`` to ``[B, T]``: the entry with the highest cosine similarity."""
        vectors = F.normalize(self.in_proj(latent).transpose(1, 2), dim=-1)
        entries = F.normalize(self.codebook.weight, dim=-1)
        distance = vectors.square().sum(-1, keepdim=True) - 2 * vectors @ entries.T + entries.square().sum(-1)
        return (-distance).argmax(-1)


class _Codebooks(nn.Module):
    def __init__(self, config: CodecConfig, size: int, count: int, *, encodes: bool) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList([_Codebook(config, size, encodes=encodes) for _ in range(count)])


class _DecoderQuantizer(nn.Module):
    """Decodes codes to latents at the rate of the convolutional decoder."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.semantic_quantizer = _Codebooks(config, config.semantic_codebook, 1, encodes=False)
        self.quantizer = _Codebooks(config, config.residual_codebook, config.residuals, encodes=False)
        self.post_module = WindowTransformer(config.latent, config.intermediate, config.layers, QUANTIZER_WINDOW)
        self.upsample = nn.ModuleList(
            [
                nn.ModuleList(
                    [
                        CausalUpsampling(config.latent, config.latent, factor, factor),
                        ConvNeXtBlock(config.latent, config.convnext),
                    ]
                )
                for factor in reversed(config.factors)
            ]
        )

    def forward(self, codes: torch.Tensor, memory: Memory) -> torch.Tensor:
        books = [*self.semantic_quantizer.quantizers, *self.quantizer.quantizers]
        # The decoders predict residual codes over a range as wide as the semantic one; codes beyond the codebook become
        # its last entry.
        latent = torch.stack(
            [
                book.decode(codes[:, index].clamp(max=book.codebook.num_embeddings - 1))
                for index, book in enumerate(books)
            ]
        ).sum(0)
        return self.post_module(latent, memory)

    def sound_layers(self) -> list[Layer]:
        """Return the layers behind the transformer."""
        stages: Any = self.upsample
        return [part.layer() for stage in stages for part in stage]


class _DecoderBlock(nn.Module):
    def __init__(self, inner: int, outer: int, rate: int) -> None:
        super().__init__()
        units = [ResidualUnit(outer, dilation) for dilation in DILATIONS]
        self.block = nn.ModuleList([Snake(inner), CausalUpsampling(inner, outer, 2 * rate, rate), *units])

    def layers(self) -> list[Layer]:
        """Return the layers."""
        parts: Any = self.block
        activation, upsampling, *units = parts
        return [upsampling.layer(activation), *(unit.layer() for unit in units)]


class _ConvolutionalDecoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        widths = [config.decoder_dim // 2**level for level in range(len(config.decoder_rates) + 1)]
        blocks = [
            _DecoderBlock(widths[level], widths[level + 1], rate) for level, rate in enumerate(config.decoder_rates)
        ]
        first, last = CausalConv(config.latent, config.decoder_dim, 7), CausalConv(widths[-1], 1, 7)
        self.model = nn.ModuleList([first, *blocks, Snake(widths[-1]), last])

    def sound_layers(self) -> list[Layer]:
        """Return the layers."""
        parts: Any = self.model
        first, *blocks, activation, last = parts
        return [first.layer(), *(each for block in blocks for each in block.layers()), last.layer(activation)]


class CodecDecoder(nn.Module):
    """Decode ``[B, codebooks, T]`` int64 codes to ``[B, T * samples_per_frame]`` samples in [-1, 1]."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.quantizer = _DecoderQuantizer(config)
        self.decoder = _ConvolutionalDecoder(config)

    def forward(self, codes: torch.Tensor, memory: Memory) -> torch.Tensor:
        latent = self.quantizer(codes, memory)
        kept = memory.together(lambda: self.sound.new_memory(1, latent))
        return torch.tanh(decode_sound(latent, kept, True, self.sound))[:, 0]

    @cached_property
    def sound(self) -> SoundStack:
        """The convolutions, of the weights that the modules have when it is first read. None trims the beginning of a stream."""
        return SoundStack([*self.quantizer.sound_layers(), *self.decoder.sound_layers()])


class _EncoderBlock(nn.Module):
    def __init__(self, inner: int, rate: int, layers: int) -> None:
        super().__init__()
        units = [ResidualUnit(inner, dilation) for dilation in DILATIONS]
        parts = [*units, Snake(inner), CausalConv(inner, 2 * inner, 2 * rate, stride=rate)]
        if layers:
            parts.append(WindowTransformer(2 * inner, 3 * 2 * inner, layers, ENCODER_WINDOW))
        self.block = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        for part in self.block:
            x = part(x) if isinstance(part, Snake) else part(x, memory)
        return x


class _ConvolutionalEncoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        width = config.encoder_dim
        parts: list[nn.Module] = [CausalConv(1, width, 7)]
        for rate, layers in zip(config.encoder_rates, config.encoder_layers, strict=True):
            parts.append(_EncoderBlock(width, rate, layers))
            width *= 2
        self.block = nn.ModuleList([*parts, Snake(width), CausalConv(width, config.latent, 3)])

    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        for part in self.block:
            x = part(x) if isinstance(part, Snake) else part(x, memory)
        return x


class _EncoderQuantizer(nn.Module):
    """Quantises latents to codes: the semantic one first, then each residual code from the remaining error."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.downsample = nn.ModuleList(
            [
                nn.ModuleList(
                    [
                        CausalConv(config.latent, config.latent, factor, stride=factor),
                        ConvNeXtBlock(config.latent, config.convnext),
                    ]
                )
                for factor in config.factors
            ]
        )
        self.pre_module = WindowTransformer(config.latent, config.intermediate, config.layers, QUANTIZER_WINDOW)
        self.semantic_quantizer = _Codebooks(config, config.semantic_codebook, 1, encodes=True)
        self.quantizer = _Codebooks(config, config.residual_codebook, config.residuals, encodes=True)

    def forward(self, latent: torch.Tensor, memory: Memory) -> torch.Tensor:
        for stage in self.downsample:
            downsampling, block = stage.children()
            latent = block(downsampling(latent, memory), memory)
        residual = self.pre_module(latent, memory)
        codes = []
        for book in (*self.semantic_quantizer.quantizers, *self.quantizer.quantizers):
            codes.append(book.encode(residual))
            residual = residual - book.decode(codes[-1])
        return torch.stack(codes, dim=1)


class CodecEncoder(nn.Module):
    """Encode ``[B, T * samples_per_frame]`` samples to ``[B, codebooks, T]`` int64 codes."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.encoder = _ConvolutionalEncoder(config)
        self.quantizer = _EncoderQuantizer(config)

    def forward(self, samples: torch.Tensor, memory: Memory) -> torch.Tensor:
        codes: torch.Tensor = self.quantizer(self.encoder(samples.unsqueeze(1), memory), memory)
        return codes
