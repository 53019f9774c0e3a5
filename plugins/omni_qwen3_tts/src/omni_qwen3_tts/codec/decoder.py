"""The codec's decoder: codes to what they stand for, a transformer over frames, and convolutions that upsample to samples.

The names of the parameters are those of the released checkpoint, with query, key and value, and gate and up joined. For inference only.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field
from torch import nn

from omni_qwen3_tts.codec.config import CodecConfig
from omni_qwen3_tts.layers import MLP
from omni_torch.api import CausalConv, FrameTransformer, FrameWindow, SoundDecoder, decode_sound

BEFORE = 3
"""Taps of the convolution before the transformer."""

USAGE_EPS = 1e-5


@define(eq=False)
class Utterance:
    """The decoder state of one request.

    Attributes:
        window: of the transformer, over the frames decoded.
        before: ``[BEFORE - 1, codebook_dim]``, what the last frames' codes stand for; ``None`` before the first chunk.
        memory: ``[memory_size]``, the last inputs of the convolutions; ``None`` before the first chunk.
    """

    window: FrameWindow = field(factory=FrameWindow)
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


class ProjectedTransformer(FrameTransformer):
    """The transformer, between two projections: ``[frames, latent]`` to the same."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config, partial(MLP, config.hidden_size, config.intermediate_size))
        self.input_proj = nn.Linear(config.latent, config.hidden_size)
        self.output_proj = nn.Linear(config.hidden_size, config.latent)

    def forward(self, x: torch.Tensor, counts: list[int], windows: list[FrameWindow]) -> torch.Tensor:
        """Transform the next frames of several utterances, so many of each."""
        made: torch.Tensor = self.output_proj(super().forward(self.input_proj(x), counts, windows))
        return made


class CodecDecoder(SoundDecoder):
    """Codes to samples, in two steps of which each has its memory."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config.latent, config.decoder_size, config.upsampling, config.rates, trims=False)
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, config.latent, BEFORE)
        self.pre_transformer = ProjectedTransformer(config)

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

    def synthesize(self, hidden: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Upsample ``[B, latent, T]`` to samples from -1 to 1, ``[B, samples]``.

        Args:
            memory: of the streams' convolutions, which is written (:meth:`SoundStack.new_memory`).
        """
        # Zeros before the first column are what a beginning has, so that nothing of it is left out.
        return decode_sound(hidden, memory, True, self.sound).clamp(min=-1, max=1)[:, 0]
