"""The network of the audio encoder: convolutions over chunks of a second, then a transformer over windows of several chunks.

The names of the parameters are those of the released checkpoint, with query, key and value joined. For inference only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from omni_qwen3.encoder_config import AudioConfig, halved_thrice, pieces
from omni_qwen3.layers import activation
from omni_qwen3.segments import Segments, attend, segments_of

POSITIONS_BASE = 10_000.0
"""The ratio of the longest to the shortest wavelength of positions within a chunk."""


class Attention(nn.Module):
    """Attention in both directions."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        query, key, value = self.qkv_proj(x).unflatten(1, (3, self.heads, -1)).unbind(1)
        return self.out_proj(attend(query, key, value, segments))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden_size)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size)
        self.activation = activation(config.activation)

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), segments)
        x = x + self.fc2(self.activation(self.fc1(self.final_layer_norm(x))))
        if x.dtype == torch.float16:  # the model was trained in bfloat16, whose range is larger
            limit = torch.finfo(torch.float16).max - 1000
            x = x.clamp(-limit, limit)
        return x


class AudioEncoder(nn.Module):
    """The audio encoder."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        channels, hidden = config.channels, config.hidden_size
        self.conv2d1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2d2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.conv2d3 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.conv_out = nn.Linear(channels * halved_thrice(config.mel_bins), hidden, bias=False)
        self.layers = nn.ModuleList([EncoderLayer(config) for _ in range(config.layers)])
        self.ln_post = nn.LayerNorm(hidden)
        self.proj1 = nn.Linear(hidden, hidden)
        self.proj2 = nn.Linear(hidden, config.output_size)
        self.activation = activation(config.activation)
        self._config = config
        self._attended = halved_thrice(config.window) * config.attention_windows

    def forward(self, features: torch.Tensor, frames: Sequence[int]) -> torch.Tensor:
        """Encode clips.

        Args:
            features: log-mel features of all clips, ``[mel_bins, frames]``.
            frames: of each clip.

        Returns:
            ``[tokens, output_size]``, the clips' tokens one after the other. Those of a chunk that is shorter than others of the call
            depend on that: as in the reference, the convolutions see what they make of the zeros behind it.
        """
        chunks = [size for clip in frames for size in self._config.chunks(clip)]
        x = self._convolve(features, chunks)
        windows = (pieces(self._config.tokens(clip), self._attended) for clip in frames)
        segments = segments_of(itertools.chain.from_iterable(windows))
        for layer in self.layers:
            x = layer(x, segments)
        return self.proj2(self.activation(self.proj1(self.ln_post(x))))

    def _convolve(self, features: torch.Tensor, chunks: list[int]) -> torch.Tensor:
        """Return the rows of all chunks, ``[tokens, hidden]``, with the positions within their chunks added."""
        longest = max(chunks)
        padded = features.new_zeros(len(chunks), 1, len(features), longest)
        for row, chunk in zip(padded, features.split(chunks, dim=1), strict=True):
            row[0, :, : chunk.shape[1]] = chunk
        x = torch.cat([self._convolve_batch(batch) for batch in padded.split(self._config.conv_batch)])
        x = x + _sinusoids(x.shape[1], x.shape[2], x.device).to(x.dtype)
        tokens = [halved_thrice(chunk) for chunk in chunks]
        if min(tokens) == x.shape[1]:
            return x.flatten(0, 1)
        return torch.cat([row[:count] for row, count in zip(x, tokens, strict=True)])

    def _convolve_batch(self, x: torch.Tensor) -> torch.Tensor:
        for convolution in (self.conv2d1, self.conv2d2, self.conv2d3):
            x = F.gelu(convolution(x))
        return self.conv_out(x.permute(0, 3, 1, 2).flatten(2))


def _sinusoids(length: int, width: int, device: torch.device) -> torch.Tensor:
    """Return the positions ``[length, width]`` in float32: sines of all wavelengths, then cosines (Vaswani et al., 2017)."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=device)
    frequencies = torch.exp(steps * (-math.log(POSITIONS_BASE) / (half - 1)))
    angles = torch.arange(length, device=device).unsqueeze(1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)
