"""Computes log-mel features of sound, as the model's feature extractor does (Whisper's: Radford et al., 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from omni_core.api import ConfigError
from omni_media.api import Samples
from omni_qwen3.processor_files import IMAGE_FILE, NESTED, processor_section

SAMPLE_RATE = 16_000
"""Of the sound that is heard, in Hz."""

HIGHEST = 8000.0
"""The upper end of the mel scale in Hz."""

FLOOR, RANGE = 1e-10, 8.0
"""The smallest power, and how many decades below its loudest value a clip reaches."""

_LINEAR_HZ, _LINEAR_MELS, _OCTAVES = 1000.0, 15.0, np.log(6.4) / 27.0
"""Slaney's mel scale: 15 mels up to 1 kHz, then 27 for each factor of 6.4."""


@frozen
class MelSettings:
    """The settings of a checkpoint's feature extractor: ``bins`` mel bins of windows of ``window`` samples, every ``hop`` samples."""

    bins: int
    window: int
    hop: int

    @property
    def shortest(self) -> int:
        """Return the samples of the shortest clip: half a window is reflected around its ends. The reference fails on a shorter one."""
        return self.window // 2 + 1

    @classmethod
    def read(cls, folder: str | Path, bins: int) -> MelSettings:
        """Read a checkpoint's settings.

        Args:
            bins: those that the audio encoder takes.

        Raises:
            ConfigError: the settings are missing, or a value is out of range or not implemented.
        """
        section = processor_section(Path(folder), "feature_extractor", IMAGE_FILE)
        if section is None:
            raise ConfigError(f"{folder} holds neither {IMAGE_FILE} nor {NESTED}; download the checkpoint again")
        section.choice("sampling_rate", (SAMPLE_RATE,), SAMPLE_RATE)
        for name in ("dither", "padding_value"):
            section.choice(name, (0, 0.0), 0.0)
        if section.integer("feature_size", 1, 4096, 80) != bins:
            raise section.fail("feature_size", f"the audio encoder's num_mel_bins, {bins}")
        return cls(bins, section.integer("n_fft", 2, 2**16, 400), section.integer("hop_length", 1, 2**16, 160))


class MelFeatures:
    """Computes features of clips at 16 kHz."""

    def __init__(self, settings: MelSettings) -> None:
        self._settings = settings
        self._window = torch.hann_window(settings.window)
        self._filters = torch.from_numpy(mel_filters(settings.bins, settings.window // 2 + 1).astype(np.float32))

    def __call__(self, clips: Sequence[Samples]) -> list[torch.Tensor]:
        """Compute the features of the clips of a request, one by one: many short ones beside a long one are little work.

        Args:
            clips: float32 ``[n]`` each.

        Returns:
            Features ``[bins, frames]`` float32 of each clip.
        """
        # The reference computes them together: behind a shorter clip it sees silence, behind the longest that one's end reflected.
        longest = max(map(len, clips))
        return [self._features(clip, min(longest - len(clip), 2 * self._settings.window)) for clip in clips]

    def _features(self, clip: Samples, silence: int) -> torch.Tensor:
        """Compute the features of a clip with so many samples of silence behind it."""
        settings = self._settings
        padded = torch.nn.functional.pad(torch.from_numpy(clip), (0, silence))
        spectrum = torch.stft(padded, settings.window, settings.hop, window=self._window, return_complex=True)
        power = (spectrum[..., :-1].abs() ** 2).contiguous()
        levels = (self._filters.T @ power).clamp(min=FLOOR).log10()
        levels = levels.maximum(levels.amax() - RANGE)
        return (levels[:, : -(-len(clip) // settings.hop)] + 4.0) / 4.0


def mel_filters(bins: int, frequencies: int) -> npt.NDArray[np.float64]:
    """Return triangular filters ``[frequencies, bins]`` of equal area, evenly spaced in mels, over 0 to half the sampling rate."""
    ends = _hertz(np.linspace(0.0, _mels(HIGHEST), bins + 2))
    steps = np.diff(ends)
    distance = ends - np.linspace(0.0, SAMPLE_RATE // 2, frequencies)[:, None]
    rising, falling = -distance[:, :-2] / steps[:-1], distance[:, 2:] / steps[1:]
    return np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (ends[2:] - ends[:-2]))


def _mels(hertz: float) -> float:
    return float(_LINEAR_MELS + np.log(hertz / _LINEAR_HZ) / _OCTAVES)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    linear = mels * (_LINEAR_HZ / _LINEAR_MELS)
    return np.where(mels < _LINEAR_MELS, linear, _LINEAR_HZ * np.exp(_OCTAVES * (mels - _LINEAR_MELS)))
