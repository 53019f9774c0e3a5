"""Functions of torchaudio that transformers' processors and codecs use: in torch and transformers' own functions, with equal results."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

_FLOOR = torch.finfo(torch.float32).eps


class MelSpectrogram(nn.Module):
    """Computes power spectra in mel bands (HTK's, not normalised): ``[..., n]`` samples to ``[..., n_mels, frames]``."""

    bank: torch.Tensor
    window: torch.Tensor

    def __init__(
        self,
        sample_rate: int = 16_000,
        n_fft: int = 400,
        win_length: int | None = None,
        hop_length: int | None = None,
        f_min: float = 0.0,
        f_max: float | None = None,
        n_mels: int = 128,
    ) -> None:
        super().__init__()
        from transformers.audio_utils import mel_filter_bank

        self.n_fft, self.win_length = n_fft, win_length or n_fft
        self.hop_length = hop_length or self.win_length // 2
        bank = mel_filter_bank(n_fft // 2 + 1, n_mels, f_min, f_max or sample_rate / 2, sample_rate, mel_scale="htk")
        self.register_buffer("bank", torch.from_numpy(bank).float(), persistent=False)
        self.register_buffer("window", torch.hann_window(self.win_length), persistent=False)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the bands."""
        flat = samples.reshape(-1, samples.shape[-1])
        spectra = torch.stft(
            flat, self.n_fft, self.hop_length, self.win_length, self.window, center=True, pad_mode="reflect", return_complex=True
        )  # fmt: skip
        bands = torch.matmul(spectra.abs().square().transpose(-1, -2), self.bank).transpose(-1, -2)
        return bands.reshape(*samples.shape[:-1], *bands.shape[-2:])


def fbank(
    waveform: torch.Tensor,
    num_mel_bins: int = 23,
    frame_length: float = 25.0,
    frame_shift: float = 10.0,
    sample_frequency: float = 16_000.0,
    window_type: str = "povey",
    dither: float = 0.0,
    energy_floor: float = 1.0,
    low_freq: float = 20.0,
    high_freq: float = 0.0,
) -> torch.Tensor:
    """Return Kaldi's log mel features ``[frames, num_mel_bins]`` of the first channel of ``[channels, n]``."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    if dither:
        raise ImportError("torchaudio is needed for features with noise; pip install torchaudio")
    size, hop = int(sample_frequency * frame_length / 1000), int(sample_frequency * frame_shift / 1000)
    fft = 2 ** math.ceil(math.log2(size))
    highest = high_freq if high_freq > 0 else sample_frequency / 2 + high_freq
    bank = mel_filter_bank(
        fft // 2 + 1, num_mel_bins, low_freq, highest, int(sample_frequency), mel_scale="kaldi", triangularize_in_mel_space=True
    )  # fmt: skip
    window = window_function(size, {"hanning": "hann"}.get(window_type, window_type), periodic=False)
    if waveform.shape[-1] < size:
        return waveform.new_empty(0, num_mel_bins)
    found = spectrogram(
        waveform[0].cpu().numpy(), window, size, hop, fft, power=2.0, center=False, preemphasis=0.97, mel_filters=bank, log_mel="log",
        mel_floor=float(_FLOOR), remove_dc_offset=True,
    )  # fmt: skip
    return torch.from_numpy(found.T).to(waveform)


def resample(
    waveform: torch.Tensor, orig_freq: int, new_freq: int, lowpass_filter_width: int = 6, rolloff: float = 0.99
) -> torch.Tensor:
    """Return sound ``[..., n]`` at another rate, by a windowed sinc."""
    common = math.gcd(int(orig_freq), int(new_freq))
    old, new = int(orig_freq) // common, int(new_freq) // common
    if old == new:
        return waveform
    base = min(old, new) * rolloff
    width = math.ceil(lowpass_filter_width * old / base)
    index = torch.arange(-width, width + old, dtype=torch.float64)[None, None] / old
    times = (torch.arange(0, -new, -1, dtype=torch.float64)[:, None, None] / new + index) * base
    times = times.clamp(-lowpass_filter_width, lowpass_filter_width)
    window = torch.cos(times * math.pi / lowpass_filter_width / 2) ** 2
    kernels = torch.sinc(times) * window * (base / old)
    flat = nn.functional.pad(waveform.reshape(-1, waveform.shape[-1]), (width, width + old))
    found = nn.functional.conv1d(flat[:, None], kernels.to(waveform), stride=old).transpose(1, 2).reshape(len(flat), -1)
    length = math.ceil(new * waveform.shape[-1] / old)
    return found[..., :length].reshape(*waveform.shape[:-1], length)


def compute_deltas(specgram: torch.Tensor, win_length: int = 5, mode: str = "replicate") -> torch.Tensor:
    """Return the slopes of features ``[..., bands, frames]`` over time."""
    reach = (win_length - 1) // 2
    flat = specgram.reshape(1, -1, specgram.shape[-1])
    padded = nn.functional.pad(flat, (reach, reach), mode=mode)
    kernel = torch.arange(-reach, reach + 1, dtype=specgram.dtype, device=specgram.device).repeat(flat.shape[1], 1, 1)
    found = nn.functional.conv1d(padded, kernel, groups=flat.shape[1]) / (reach * (reach + 1) * (2 * reach + 1) / 3)
    return found.reshape(specgram.shape)


def forced_align(*given: Any, **named: Any) -> Any:
    """Raise ImportError."""
    raise ImportError("torchaudio is needed to align words with sound; pip install torchaudio")


merge_tokens = forced_align
