"""Trains the vocoder: transformers' own ``Qwen3OmniMoeCode2Wav`` on crops of the replies."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from demo_training.speech.loop import Losses, standard_weights, train
from demo_training.speech.shape import config
from demo_training.speech.speech import FRAME, utterances

STEPS = 700
_BATCH, _CROP = 8, 8
_RESOLUTIONS = (2048, 1024, 512, 256, 128)
_QUIET = 0.003
"""Added to magnitudes before the logarithm; errors in quieter parts then count little."""


def train_code2wav(folder: Path, steps: int = STEPS) -> Qwen3OmniMoeCode2Wav:
    torch.manual_seed(3)
    model = Qwen3OmniMoeCode2Wav(config().code2wav_config)
    standard_weights(model)
    data = utterances()

    def step_losses(step: int) -> Losses:
        generator = torch.Generator().manual_seed(step)
        codes, waves = [], []
        for _ in range(_BATCH):
            utterance = data[int(torch.randint(len(data), (), generator=generator))]
            begin = int(torch.randint(len(utterance.codes) - _CROP + 1, (), generator=generator))
            codes.append(utterance.codes[begin : begin + _CROP].T)
            waves.append(utterance.wave[begin * FRAME : (begin + _CROP) * FRAME])
        made = model(torch.stack(codes))[:, 0]
        target = torch.stack(waves)[:, : made.shape[1]]
        wave, spectrum = F.l1_loss(made, target), _spectral_loss(made, target)
        return {"loss": 20 * wave + spectrum, "wave": wave, "spectrum": spectrum}

    train("code2wav", model, step_losses, folder, steps=steps, rate=2e-3, betas=(0.8, 0.99))
    return model


def _spectral_loss(made: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compare magnitudes at several resolutions: relative error, and distance of the logarithms."""
    total = torch.zeros(())
    for size in _RESOLUTIONS:
        window = torch.hann_window(size)

        def magnitude(wave: torch.Tensor, size: int = size, window: torch.Tensor = window) -> torch.Tensor:
            spectrum = torch.stft(wave, size, size // 4, size, window, normalized=True, return_complex=True)
            return (spectrum.real**2 + spectrum.imag**2 + 1e-9).sqrt()

        a, b = magnitude(made), magnitude(target)
        total = total + (a - b).norm() / b.norm() + F.l1_loss((a + _QUIET).log(), (b + _QUIET).log())
    return total / len(_RESOLUTIONS)
