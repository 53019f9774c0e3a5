"""Codes and sound equal the reference's: three shapes of each kind of checkpoint, greedy; and it draws codes as often."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from qwen3_tts_cases import DRAWN, DRAWS, SHAPES, cases_of, codes_to_decode, recording
from qwen3_tts_stages import GREEDY, Stages, asking
from tiers import few

from omni_qwen3_tts.code2wav import Vocoder
from omni_qwen3_tts.config import read_config
from omni_qwen3_tts.voices import ReferenceLimits, VoiceEncoder

Tiny = Callable[[str], Path]
Golden = dict[str, np.ndarray]


@pytest.mark.parametrize("shape", few(SHAPES))
def test_codes_and_sound_equal_the_reference(shape: str, tiny: Tiny, golden: Golden) -> None:
    """All cases together: named and described voices, languages and dialects, instructions, clones with and without their words."""
    cases = cases_of(shape)
    for number, made in enumerate(Stages(tiny(shape)).run(*(asking(each, **GREEDY) for each in cases))):
        assert np.array_equal(made.codes, golden[f"{shape}.{number}.codes"]), cases[number]
        sound = golden[f"{shape}.{number}.sound"]
        np.testing.assert_allclose(made.samples[: len(sound)], sound, atol=1e-5, rtol=0)
        assert len(made.samples) == len(made.codes) * Vocoder(str(tiny(shape))).samples_per_frame


@pytest.mark.parametrize("shape", few(SHAPES))
@pytest.mark.parametrize("cut", few([1, 4, 7, 30], 2))
def test_sound_of_codes_equals_the_reference_however_frames_come(
    shape: str, cut: int, tiny: Tiny, golden: Golden
) -> None:
    vocoder = Vocoder(str(tiny(shape)))
    codes = torch.from_numpy(codes_to_decode(vocoder.codebooks))
    one, other, pieces = vocoder.begin(), vocoder.begin(), list[torch.Tensor]()
    for number, chunk in enumerate(codes.split(cut)):
        work = [(one, chunk)] if number % 2 else [(one, chunk), (other, codes[:3])]  # beside another stream
        pieces.append(vocoder.decode(work)[0])
    sound = golden[f"{shape}.decoded"]
    np.testing.assert_allclose(torch.cat(pieces)[-len(sound) :], sound, atol=1e-5, rtol=0)
    assert len(torch.cat(pieces)) == len(codes) * vocoder.samples_per_frame


@pytest.mark.parametrize("shape", few(["base-a", "base-b", "base-c"], 1))
def test_recordings_are_encoded_as_by_the_reference(shape: str, tiny: Tiny, golden: Golden) -> None:
    folder = str(tiny(shape))
    voices = VoiceEncoder(folder, read_config(folder), ReferenceLimits())
    found = voices.encode(torch.from_numpy(recording(1)))
    assert np.array_equal(found.codes, golden[f"{shape}.encoded"])
    np.testing.assert_allclose(found.embedding, golden[f"{shape}.embedding"], atol=1e-5, rtol=1e-4)


def test_it_draws_codes_as_often_as_the_reference(tiny: Tiny, golden: Golden) -> None:
    """Both codes of a first frame, by a chi-square test of two samples."""
    settings = {name.replace("subtalker", "residual"): value for name, value in DRAWN.items()}
    case = cases_of("a")[1]
    asked = [asking(case, seed=seed, **{**settings, "max_new_tokens": 2}) for seed in range(DRAWS)]
    made = Stages(tiny("a"), max_running=200).run(*asked)
    for group in (0, 1):
        ours = np.bincount([int(each.codes[0, group]) for each in made], minlength=32)
        theirs = golden["drawn"][group]
        assert ours.sum() == theirs.sum() == DRAWS
        rare = ours + theirs < 10
        pairs = [*zip(ours[~rare], theirs[~rare], strict=True), (ours[rare].sum(), theirs[rare].sum())]
        statistic = sum((one - other) ** 2 / (one + other) for one, other in pairs if one + other)
        freedom = sum(1 for one, other in pairs if one + other) - 1
        # Wilson and Hilferty's approximation of the 0.999 quantile.
        assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3, group
