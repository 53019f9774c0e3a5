"""The network that makes a voice's embedding of a recording: an ECAPA-TDNN over a mel spectrogram (Desplanques et al., 2020)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_qwen3_tts.config import SpeakerEncoderConfig

WINDOW, HOP = 1024, 256
"""Samples of a spectrum, and between the beginnings of two."""

HIGHEST_HZ = 12_000.0
"""Of the mel bands."""


def mel_bands(count: int, sample_rate: int) -> torch.Tensor:
    """Return triangles of equal area on Slaney's mel scale, linear to 1 kHz and logarithmic above: ``[count, WINDOW / 2 + 1]``."""
    linear, bend, step = 200.0 / 3, 1000.0, math.log(6.4) / 27
    highest = bend / linear + math.log(HIGHEST_HZ / bend) / step
    mels = torch.linspace(0.0, highest, count + 2, dtype=torch.float64)
    hertz = torch.where(mels < bend / linear, mels * linear, bend * ((mels - bend / linear) * step).exp())
    bins = torch.linspace(0.0, sample_rate / 2, WINDOW // 2 + 1, dtype=torch.float64)
    rising = (bins - hertz[:-2, None]) / (hertz[1:-1] - hertz[:-2])[:, None]
    falling = (hertz[2:, None] - bins) / (hertz[2:] - hertz[1:-1])[:, None]
    area = 2.0 / (hertz[2:] - hertz[:-2])[:, None]
    return (torch.minimum(rising, falling).clamp(min=0) * area).float()


class Spectrogram:
    """Makes log-mel spectrograms of 24 kHz sound."""

    def __init__(self, config: SpeakerEncoderConfig, device: str | torch.device = "cpu") -> None:
        self._bands = mel_bands(config.mels, config.sample_rate).to(device)
        self._window = torch.hann_window(WINDOW, device=device)

    def __call__(self, samples: torch.Tensor) -> torch.Tensor:
        """Return ``[mels, spectra]`` of ``[n]`` samples, ``n`` more than half of ``WINDOW - HOP``."""
        margin = (WINDOW - HOP) // 2
        padded = F.pad(samples.float()[None, None], (margin, margin), mode="reflect")[0, 0]
        spectra = torch.stft(padded, WINDOW, HOP, WINDOW, self._window, center=False, return_complex=True)
        magnitudes = (torch.view_as_real(spectra).square().sum(-1) + 1e-9).sqrt()
        return (self._bands @ magnitudes).clamp(min=1e-5).log()


def _conv(inner: int, outer: int, kernel: int = 1, dilation: int = 1) -> nn.Conv1d:
    return nn.Conv1d(inner, outer, kernel, dilation=dilation, padding="same", padding_mode="reflect")


class TimeDelay(nn.Module):
    """A convolution with reflected ends, and ReLU."""

    def __init__(self, inner: int, outer: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _conv(inner, outer, kernel, dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """Convolutions of parts of the channels, of which each sees the part before it (Gao et al., 2019)."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        width, self._scale = channels // scale, scale
        self.blocks = nn.ModuleList([TimeDelay(width, width, kernel, dilation) for _ in range(scale - 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = x.chunk(self._scale, dim=1)
        made = [first]
        for index, (block, part) in enumerate(zip(self.blocks, others, strict=True)):
            made.append(block(part if index == 0 else part + made[-1]))
        return torch.cat(made, dim=1)


class Gate(nn.Module):
    """Multiplies each channel by a factor made of the averages of all (Hu et al., 2018)."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _conv(channels, inner), _conv(inner, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.conv2(F.relu(self.conv1(x.mean(2, keepdim=True)))).sigmoid()


class Block(nn.Module):
    """Convolutions over each spectrum, over neighbouring ones in parts, and a gate, around a residual."""

    def __init__(self, config: SpeakerEncoderConfig, number: int) -> None:
        super().__init__()
        channels = config.channels[number]
        self.tdnn1, self.tdnn2 = TimeDelay(config.channels[number - 1], channels), TimeDelay(channels, channels)
        self.res2net_block = Res2Net(channels, config.scale, config.kernels[number], config.dilations[number])
        self.se_block = Gate(channels, config.gate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return made + x


class Pooling(nn.Module):
    """Mean and deviation of each channel over time, weighted by attention: ``[1, channels, n]`` to ``[1, 2 * channels, 1]``."""

    def __init__(self, channels: int, attention: int) -> None:
        super().__init__()
        self.tdnn, self.conv = TimeDelay(3 * channels, attention), _conv(attention, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        overall = [each.expand_as(x) for each in self._moments(x, torch.full_like(x[:, :1], 1.0 / x.shape[2]))]
        weights = self.conv(self.tdnn(torch.cat([x, *overall], dim=1)).tanh()).softmax(2)
        return torch.cat(self._moments(x, weights), dim=1)

    def _moments(self, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
        mean = (weights * x).sum(2, keepdim=True)
        return [mean, (weights * (x - mean).square()).sum(2, keepdim=True).clamp(min=1e-12).sqrt()]


class SpeakerEncoder(nn.Module):
    """A log-mel spectrogram, ``[1, mels, n]``, to a voice's embedding, ``[1, size]``."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        channels, last = config.channels, len(config.channels) - 1
        first = TimeDelay(config.mels, channels[0], config.kernels[0], config.dilations[0])
        self.blocks = nn.ModuleList([first, *(Block(config, number) for number in range(1, last))])
        self.mfa = TimeDelay(channels[last], channels[last], config.kernels[last], config.dilations[last])
        self.asp = Pooling(channels[last], config.attention)
        self.fc = _conv(2 * channels[last], config.size)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        blocks: Any = self.blocks
        x, found = blocks[0](mels), []
        for block in blocks[1:]:
            x = block(x)
            found.append(x)
        embedding: torch.Tensor = self.fc(self.asp(self.mfa(torch.cat(found, dim=1))))
        return embedding.squeeze(-1)
