"""The sound of phonemes stretched to their durations, with pitch, loudness and a voice: of several sentences in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from omni_kokoro.config import KokoroConfig, SoundConfig
from omni_kokoro.network.joined import Joined, StyledBlock, StyledNorm
from omni_kokoro.network.source import Noise, Source, Transform

BESIDE = 64
"""Channels of the phonemes beside those of the decoder's blocks."""


class _Residual(nn.Module):
    """Three pairs of convolutions, the first of each dilated."""

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int], style: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(self._conv(channels, kernel, each) for each in dilations)
        self.convs2 = nn.ModuleList(self._conv(channels, kernel, 1) for _ in dilations)
        self.adain1 = nn.ModuleList(StyledNorm(style, channels) for _ in dilations)
        self.adain2 = nn.ModuleList(StyledNorm(style, channels) for _ in dilations)
        self.alpha1 = nn.ParameterList([torch.ones(1, channels, 1) for _ in dilations])
        self.alpha2 = nn.ParameterList([torch.ones(1, channels, 1) for _ in dilations])
        self.reach = kernel // 2 * max(dilations)

    def _conv(self, channels: int, kernel: int, dilation: int) -> nn.Conv1d:
        return nn.Conv1d(channels, channels, kernel, padding=kernel // 2 * dilation, dilation=dilation)

    def forward(self, x: Joined, styles: torch.Tensor) -> Joined:
        halves1 = zip(_norms(self.adain1), self.alpha1, self.convs1, strict=True)
        halves2 = zip(_norms(self.adain2), self.alpha2, self.convs2, strict=True)
        for (norm1, alpha1, conv1), (norm2, alpha2, conv2) in zip(halves1, halves2, strict=True):
            inner = norm1.snake(x, styles, alpha1).convolved(conv1)
            inner = norm2.snake(inner, styles, alpha2).convolved(conv2)
            x = x.like(inner.values.add_(x.values))
        return x


def _norms(modules: nn.ModuleList) -> list[StyledNorm]:
    return [each for each in modules if isinstance(each, StyledNorm)]


class Generator(nn.Module):
    """An iSTFTNet: ``[channels, n]`` and pitch ``[n]`` to ``[300 n]`` samples."""

    def __init__(self, config: SoundConfig, style: int) -> None:
        super().__init__()
        bins = config.fft + 2
        self.m_source = Source()
        self.noise_convs, self.noise_res = nn.ModuleList(), nn.ModuleList()
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        channels = config.channels
        for index, (rate, kernel) in enumerate(zip(config.upsample_rates, config.upsample_kernels, strict=True)):
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, kernel, rate, padding=(kernel - rate) // 2))
            channels //= 2
            for width, dilations in zip(config.kernels, config.dilations, strict=True):
                self.resblocks.append(_Residual(channels, width, dilations, style))
            after = math.prod(config.upsample_rates[index + 1 :])
            if index + 1 < len(config.upsample_rates):
                self.noise_convs.append(nn.Conv1d(bins, channels, 2 * after, after, padding=(after + 1) // 2))
                self.noise_res.append(_Residual(channels, 7, (1, 3, 5), style))
            else:
                self.noise_convs.append(nn.Conv1d(bins, channels, 1))
                self.noise_res.append(_Residual(channels, 11, (1, 3, 5), style))
        self.conv_post = nn.Conv1d(channels, bins, 7, padding=3)
        self._transform = Transform(config.fft, config.hop)
        self._gap = max(each.reach for each in (*self.resblocks, *self.noise_res) if isinstance(each, _Residual))
        self._each, self._bins = len(config.kernels), bins // 2

    def forward(
        self, x: list[torch.Tensor], styles: torch.Tensor, pitches: list[torch.Tensor], noises: list[Noise]
    ) -> list[torch.Tensor]:
        sources = [
            self._transform.there(self.m_source(pitch, noise)) for pitch, noise in zip(pitches, noises, strict=True)
        ]
        for index, up in enumerate(self.ups):
            blocks = [self.resblocks[index * self._each + number] for number in range(self._each)]
            beside = Joined.of([self.noise_convs[index](each[None])[0] for each in sources], self._gap)
            beside = self.noise_res[index](beside, styles)
            longer = [up(F.leaky_relu(each, 0.1)[None])[0] for each in x]
            if index + 1 == len(self.ups):
                longer = [F.pad(each[None], (1, 0), mode="reflect")[0] for each in longer]
            joined = Joined.of(longer, self._gap)
            joined = joined.like(joined.values + beside.values)
            total = blocks[0](joined, styles).values
            for block in blocks[1:]:
                total = total.add_(block(joined, styles).values)
            x = joined.like(total.div_(self._each)).parts()
        made = [self.conv_post(F.leaky_relu(each)[None])[0] for each in x]
        return [self._transform.back(each[: self._bins].exp(), each[self._bins :].sin()) for each in made]


class Decoder(nn.Module):
    """Phonemes by frame, pitch and loudness to samples."""

    def __init__(self, config: KokoroConfig) -> None:
        super().__init__()
        style, width = config.style, config.sound.width
        self.encode = StyledBlock(config.hidden + 2, width, style)
        self.decode = nn.ModuleList(StyledBlock(width + 2 + BESIDE, width, style) for _ in range(3))
        self.decode.append(StyledBlock(width + 2 + BESIDE, config.sound.channels, style, doubles=True))
        self.F0_conv, self.N_conv = nn.Conv1d(1, 1, 3, 2, padding=1), nn.Conv1d(1, 1, 3, 2, padding=1)
        self.asr_res = nn.Sequential(nn.Conv1d(config.hidden, BESIDE, 1))
        self.generator = Generator(config.sound, style)

    def forward(
        self,
        read: list[torch.Tensor],
        pitches: list[torch.Tensor],
        loudness: list[torch.Tensor],
        styles: torch.Tensor,
        noises: list[Noise],
    ) -> list[torch.Tensor]:
        """Return each sentence's samples, ``[600 * frames]``.

        Args:
            read: phonemes by frame, ``[hidden, frames]``.
            pitches, loudness: ``[2 * frames]`` each.
            styles: ``[sentences, style]``.
        """
        phonemes = Joined.of(read, 1)
        pitch = Joined.of([self.F0_conv(each[None, None])[0] for each in pitches], 1).values
        loud = Joined.of([self.N_conv(each[None, None])[0] for each in loudness], 1).values
        x = self.encode(phonemes.cat(pitch, loud), styles)
        beside = self.asr_res(phonemes.values[None])[0]
        for block in self.decode:
            x = block(x.cat(beside, pitch, loud), styles)
        found: list[torch.Tensor] = self.generator(x.parts(), styles, pitches, noises)
        return found
