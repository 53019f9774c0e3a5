"""Durations, pitch and loudness of phonemes, and the reader of phonemes that the sound is made from.

Each sentence is computed by itself: a duration is rounded, and pitch is summed to a phase, so that the last bit of a batch's
rounding would be heard beside other requests. The sound, which is 19 of 20 parts of the work, is computed together.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_kokoro.config import KokoroConfig
from omni_kokoro.network.joined import EPSILON, Joined, StyledBlock


def _lstm(inputs: int, outputs: int) -> nn.LSTM:
    return nn.LSTM(inputs, outputs // 2, batch_first=True, bidirectional=True)


def _run(lstm: Any, x: torch.Tensor) -> torch.Tensor:
    """``[n, inputs]`` to ``[n, outputs]``."""
    found: torch.Tensor = lstm(x[None])[0][0]
    return found


class _Scale(nn.Module):
    """Layer normalisation over channels, under the published names."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.T, self.gamma.shape, self.gamma, self.beta, EPSILON).T


class TextEncoder(nn.Module):
    """``[n]`` ids to ``[hidden, n]``."""

    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        size = config.hidden
        self.embedding = nn.Embedding(config.tokens, size)
        self.cnn = nn.ModuleList(
            nn.Sequential(nn.Conv1d(size, size, config.kernel, padding=config.kernel // 2), _Scale(size))
            for _ in range(config.layers)
        )
        self.lstm = _lstm(size, size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids).T
        for layer in self.cnn:
            conv, norm = layer.children()
            x = F.leaky_relu(norm(conv(x[None])[0]), 0.2)
        return _run(self.lstm, x.T).T


class _StyledLayerNorm(nn.Module):
    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(style, 2 * channels)

    def forward(self, x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        scale, shift = self.fc(style).chunk(2)
        found: torch.Tensor = (1 + scale) * F.layer_norm(x, x.shape[1:], eps=EPSILON) + shift
        return found


class _DurationEncoder(nn.Module):
    """``[n, hidden]`` and a style to ``[n, hidden + style]``."""

    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        self.lstms = nn.ModuleList()
        for _ in range(config.layers):
            self.lstms.append(_lstm(config.hidden + config.style, config.hidden))
            self.lstms.append(_StyledLayerNorm(config.style, config.hidden))

    def forward(self, x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        beside = style.expand(len(x), -1)
        x = torch.cat([x, beside], 1)
        for lstm, norm in zip(self.lstms[::2], self.lstms[1::2], strict=True):
            x = torch.cat([norm(_run(lstm, x), style), beside], 1)
        return x


class _Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear_layer = nn.Linear(inputs, outputs)


class Predictor(nn.Module):
    """Durations of phonemes, then pitch and loudness of frames."""

    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        size, half, style = config.hidden, config.hidden // 2, config.style
        self.text_encoder = _DurationEncoder(config)
        self.lstm, self.shared = _lstm(size + style, size), _lstm(size + style, size)
        self.duration_proj = _Linear(size, config.longest)
        self.F0 = nn.ModuleList(self._blocks(size, half, style))
        self.N = nn.ModuleList(self._blocks(size, half, style))
        self.F0_proj, self.N_proj = nn.Conv1d(half, 1, 1), nn.Conv1d(half, 1, 1)

    def _blocks(self, size: int, half: int, style: int) -> list[StyledBlock]:
        return [
            StyledBlock(size, size, style),
            StyledBlock(size, half, style, doubles=True),
            StyledBlock(half, half, style),
        ]

    def durations(self, x: torch.Tensor, style: torch.Tensor, speed: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``[n]`` units of 25 ms, at least 1 each, and what :meth:`curves` takes, ``[n, hidden + style]``."""
        read = self.text_encoder(x, style)
        spread = torch.sigmoid(self.duration_proj.linear_layer(_run(self.lstm, read)))
        return torch.round(spread.sum(1) / speed).clamp(min=1).long(), read

    def curves(self, x: torch.Tensor, style: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return pitch in Hz and loudness, ``[2 * frames]`` each, of ``[frames, hidden + style]``."""
        shared = Joined.of([_run(self.shared, x).T], 0)
        found = []
        for blocks, last in ((self.F0, self.F0_proj), (self.N, self.N_proj)):
            curve = shared
            for block in blocks:
                curve = block(curve, style[None])
            found.append(last(curve.values[None])[0, 0])
        return found[0], found[1]
