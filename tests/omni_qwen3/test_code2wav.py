"""The vocoder: any chunking gives the reference's decode of all frames at once, sample-exact; invalid codes are errors."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hearing import answer, heard
from networks import reference
from tiers import few

from omni_qwen3.code2wav import Vocoder, create_code2wav

FRAMES = 70


def frames_of(vocoder: Vocoder, seed: int = 0, count: int = FRAMES) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocoder.codebook_size, (count, vocoder.codebooks), generator=generator)


@cache
def reference_vocoder(folder: Path) -> Any:
    return reference(folder, "vocoder")


def one_shot(folder: Path, frames: torch.Tensor) -> torch.Tensor:
    """The reference network on all frames at once."""
    with torch.inference_mode():
        wave: torch.Tensor = reference_vocoder(folder)(frames.T.unsqueeze(0))[0, 0]
    return wave


@pytest.mark.parametrize("shape", few("abc", 2))
@pytest.mark.parametrize("sizes", few([[FRAMES], [1] * FRAMES, [3, 7, 60], [1, 2] + [25] * 2 + [17], [69, 1]], 3))
def test_every_chunking_equals_the_one_shot_decode(tiny: dict[str, Path], shape: str, sizes: list[int]) -> None:
    vocoder = Vocoder(str(tiny[shape]))
    frames = frames_of(vocoder)
    expected = one_shot(tiny[shape], frames)
    utterance, pieces = vocoder.begin(), []
    for chunk in frames.split(sizes):
        pieces += vocoder.decode([(utterance, chunk)])
    wave = torch.cat(pieces)
    assert wave.shape == expected.shape == (1920 * FRAMES - 555,)
    torch.testing.assert_close(wave, expected, atol=2e-5, rtol=0)
    assert expected.abs().max() > 0.01
    assert (expected.abs() >= 1).float().mean() < 0.01, "a clipped waveform would hide differences"


def test_the_memory_of_the_convolutions_is_audible(tiny: dict[str, Path]) -> None:
    """The state between chunks is needed: without it, chunks differ (so the test above can fail)."""
    vocoder = Vocoder(str(tiny["a"]))
    frames = frames_of(vocoder)
    utterance, pieces = vocoder.begin(), []
    for chunk in frames.split(5):
        pieces += vocoder.decode([(utterance, chunk)])
        assert utterance.memory is not None
        utterance.memory = torch.zeros_like(utterance.memory)
    assert (torch.cat(pieces) - one_shot(tiny["a"], frames)).abs().max() > 1e-4


def test_a_batch_equals_each_alone(tiny: dict[str, Path]) -> None:
    vocoder = Vocoder(str(tiny["b"]))
    clips = [frames_of(vocoder, seed, 30) for seed in range(3)]
    expected = [one_shot(tiny["b"], clip) for clip in clips]
    utterances = [vocoder.begin() for _ in clips]
    waves: list[list[torch.Tensor]] = [[], [], []]
    for step in range(0, 30, 10):
        decoded = vocoder.decode([(u, clip[step : step + 10]) for u, clip in zip(utterances, clips, strict=True)])
        for wave, piece in zip(waves, decoded, strict=True):
            wave.append(piece)
    for wave, target in zip(waves, expected, strict=True):
        torch.testing.assert_close(torch.cat(wave), target, atol=2e-5, rtol=0)


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_the_stage_streams_what_it_returns(tiny: dict[str, Path], count: int) -> None:
    frames = frames_of(Vocoder(str(tiny["a"])), 1, count)
    result = heard(create_code2wav(str(tiny["a"]), initial_chunk=2, chunk=7), frames)
    assert len(result.samples) == max(0, 1920 * count - 555)
    assert result.sample_rate == 24_000


def test_codes_are_checked_by_the_checkpoint_s_size(tiny: dict[str, Path]) -> None:
    frames = frames_of(Vocoder(str(tiny["a"])), 0, 5)
    frames[3, 1] = 64
    *_, last = answer(create_code2wav(str(tiny["a"])), frames)
    assert last.type == "error"
    assert "codes must be from 0 to 63" in str(last.data)
