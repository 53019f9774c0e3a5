"""Makes the training targets of speech: every reply as sound, cut into frames of 80 ms, and the codec codes of each
frame.

A frame's first code identifies it: one code per (reply, frame), so the vocoder learns exactly these sounds. Its other
codes are a residual vector quantisation of its spectrum. Every reply begins with the same few silent frames, during
which the talker reads the first tokens before it has to choose a reply.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from attrs import frozen

from demo_training.speech.espeak import Samples, speak_all
from omni_demo.speech.phrases import REPLIES

FRAME = 1920
"""Samples per frame: 80 ms at 24 kHz."""
LEAD = 4
"""Silent frames before a reply."""
GROUPS = 4
"""Codes per frame."""
CODEBOOK = 512
SPEED = 160
"""Words per minute."""
_LEVEL = 0.01
"""The amplitude below which the ends of a recording are trimmed."""
_CENTRES = 64
"""Codes in use in each residual group."""


@frozen(eq=False)
class Utterance:
    """A reply's sound ``[frames * FRAME]`` float32 and codes ``[frames, GROUPS]`` int64."""

    text: str
    wave: torch.Tensor
    codes: torch.Tensor


@cache
def utterances() -> tuple[Utterance, ...]:
    """Return all replies; deterministic."""
    waves = [_frames(samples) for samples in speak_all(REPLIES, speed=SPEED)]
    first, following = [], LEAD
    for wave in waves:
        count = len(wave) // FRAME - LEAD
        first.append(torch.cat([torch.arange(LEAD), torch.arange(following, following + count)]))
        following += count
    if following > CODEBOOK:
        raise ValueError(f"the replies have {following} different frames; the codebook holds {CODEBOOK}")
    residual = _quantise(torch.cat([_spectra(wave) for wave in waves])).split([len(codes) for codes in first])
    return tuple(
        Utterance(reply, wave, torch.cat([codes.unsqueeze(1), rest], dim=1))
        for reply, wave, codes, rest in zip(REPLIES, waves, first, residual, strict=True)
    )


def _frames(samples: Samples) -> torch.Tensor:
    """Return whole frames: silence, the trimmed speech, and a silent frame that the vocoder may cut into."""
    loud = np.flatnonzero(np.abs(samples) > _LEVEL)
    speech = samples[loud[0] : loud[-1] + 1] / np.abs(samples).max() * 0.7
    frames = LEAD + -(-len(speech) // FRAME) + 1
    wave = torch.zeros(frames * FRAME)
    wave[LEAD * FRAME : LEAD * FRAME + len(speech)] = torch.from_numpy(speech)
    return wave


def _spectra(wave: torch.Tensor) -> torch.Tensor:
    """Return log energies of 40 bands of each frame, ``[frames, 40]``."""
    power = torch.fft.rfft(wave.view(-1, FRAME) * torch.hann_window(FRAME), dim=1).abs() ** 2
    bands = torch.nn.functional.adaptive_avg_pool1d(power[:, :640].unsqueeze(1), 40).squeeze(1)
    return (bands + 1e-3).log()


def _quantise(vectors: torch.Tensor) -> torch.Tensor:
    """Quantise by residual k-means, seeded: ``[n, d]`` to ``[n, GROUPS - 1]`` codes. Equal vectors get equal codes."""
    generator = torch.Generator().manual_seed(0)
    rest, codes = vectors.clone(), []
    for _ in range(GROUPS - 1):
        centres = rest[torch.randperm(len(rest), generator=generator)[:_CENTRES]]
        for _ in range(20):
            chosen = torch.cdist(rest, centres).argmin(1)
            for centre in chosen.unique().tolist():
                centres[centre] = rest[chosen == centre].mean(0)
        chosen = torch.cdist(rest, centres).argmin(1)
        codes.append(chosen)
        rest = rest - centres[chosen]
    return torch.stack(codes, dim=1)
