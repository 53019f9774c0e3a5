"""The source of the sound: sines of the pitch and its overtones, and noise where nothing is voiced; and its spectrum."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from omni_kokoro.config import FRAME
from omni_kokoro.interface import RATE
from omni_torch.api import seeded_generator

SINES = 9
"""The pitch and eight overtones."""

LOUDNESS, NOISE, VOICED = 0.1, 0.003, 10.0
"""Of the sines; of the noise beside them; the pitch in Hz above which a sound is voiced."""

_SCALE = FRAME // 2
"""Samples of one value of the pitch."""


class Noise:
    """Random numbers of one sentence, those that the published code draws after ``torch.manual_seed(seed)``."""

    def __init__(self, seed: int) -> None:
        self._generator = seeded_generator(seed)

    def __call__(self, samples: int) -> torch.Tensor:
        """Return ``[samples, SINES]`` normal numbers."""
        torch.rand(1, SINES, generator=self._generator)  # phases of the sines' first sample, which is then not read
        return torch.empty(SINES, samples).T.normal_(
            generator=self._generator
        )  # of another layout they would be others


class Source(nn.Module):
    """Pitch ``[frames]`` to a sound ``[frames * 300]``."""

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(SINES, 1)

    def forward(self, pitch: torch.Tensor, noise: Noise) -> torch.Tensor:
        overtones = torch.arange(1, SINES + 1, dtype=pitch.dtype, device=pitch.device)
        turns = (pitch[None, :, None] * overtones / RATE) % 1
        # Phases grow to 100,000 and more, and a spectrum's jump from pi to -pi: the order of roundings, and the layout in memory that
        # chooses it, are the published code's.
        phase = (torch.cumsum(turns, 1) * 2 * math.pi).transpose(1, 2) * _SCALE
        phase = F.interpolate(phase, scale_factor=_SCALE, mode="linear").transpose(1, 2)
        voiced = (pitch > VOICED).to(pitch).repeat_interleave(_SCALE)[None, :, None]
        sines = torch.sin(phase) * LOUDNESS * voiced
        sines = sines + (voiced * NOISE + (1 - voiced) * LOUDNESS / 3) * noise(len(pitch) * _SCALE).to(pitch)
        found: torch.Tensor = torch.tanh(self.l_linear(sines))[0, :, 0]
        return found


class Transform:
    """Short-time Fourier transforms with a Hann window."""

    def __init__(self, length: int, hop: int) -> None:
        self._sizes = (length, hop, length)

    def there(self, sound: torch.Tensor) -> torch.Tensor:
        """Return magnitudes and phases, ``[length + 2, frames + 1]``."""
        found = torch.stft(sound, *self._sizes, window=self._window(sound), return_complex=True)
        return torch.cat([found.abs(), found.angle()])

    def back(self, magnitude: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
        """Return the sound of ``[length / 2 + 1, frames + 1]`` each."""
        found: torch.Tensor = torch.istft(torch.polar(magnitude, phase), *self._sizes, window=self._window(magnitude))
        return found

    def _window(self, like: torch.Tensor) -> torch.Tensor:
        return torch.hann_window(self._sizes[0], dtype=like.dtype, device=like.device)
