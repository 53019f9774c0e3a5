"""Our functions in place of torchvision's and torchaudio's: equal pixels, equal spectra, and a line that says what is missing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch

from omni_transformers.stand_ins import pictures, spectra
from omni_transformers.stand_ins.number_words import num2words

_PICTURES = """
import sys
from importlib import import_module
import torch

if sys.argv[1] == "theirs":
    import oracle

    oracle.load_torchvision()
    from torchvision.transforms.v2 import functional
else:
    functional = import_module("omni_transformers.stand_ins.pictures")
mode = functional.InterpolationMode
random = torch.Generator().manual_seed(0)
pixels = torch.randint(0, 256, (2, 3, 37, 53), dtype=torch.uint8, generator=random)
floats = torch.rand(3, 20, 30, generator=random)
found = [
    functional.resize(given, size, interpolation=how, antialias=smooth)
    for given in (pixels, floats, pixels.int())
    for size in ([16, 24], [80, 70], [20])
    for how in (mode.BILINEAR, mode.BICUBIC, mode.NEAREST, mode.NEAREST_EXACT)
    for smooth in (True, False)
]
found += [functional.resize(each, [20, 30], interpolation=mode.LANCZOS) for each in (pixels, pixels[0])]
found += [functional.resize(pixels, [20], interpolation=2, max_size=25), functional.resize(pixels, [37, 53])]
found += [functional.pad(pixels, sides, fill=fill) for sides in (2, [1, 2], [1, 2, 3, 4]) for fill in (0, 7)]
found += [functional.pad(floats, [1, 2, 3, 4], fill=[0.1, 0.2, 0.3]), functional.pad(floats, [2, 2], padding_mode="reflect")]
found += [functional.crop(pixels, *at) for at in ((3, 4, 10, 12), (-2, -3, 20, 20), (30, 40, 20, 20))]
found += [functional.normalize(floats, [0.1, 0.2, 0.3], [0.4, 0.5, 0.6])]
found += [functional.to_dtype(pixels, torch.float32, scale=True), functional.to_dtype(floats, torch.uint8, scale=True)]
found += [functional.grayscale_to_rgb(pixels[:, :1]), functional.rgb_to_grayscale(pixels), functional.rgb_to_grayscale(pixels, 3)]
found += [functional.pil_to_tensor(functional.to_pil_image(given)) for given in (pixels[0], floats, pixels[0, :1])]
torch.save(found, sys.argv[2])
"""


@pytest.mark.full
def test_pictures_are_those_of_torchvision(tmp_path: Path) -> None:
    if "OMNI_ORACLE_PACKAGES" not in os.environ:
        pytest.skip("needs torchvision in OMNI_ORACLE_PACKAGES; `nox` sets it")
    paths = os.pathsep.join([str(Path(oracle.__file__).parent), os.environ.get("PYTHONPATH", "")])
    made = {}
    for who in ("ours", "theirs"):
        command = [sys.executable, "-c", _PICTURES, who, str(tmp_path / who)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True)
        made[who] = torch.load(tmp_path / who, weights_only=True)
    assert len(made["ours"]) == len(made["theirs"]) > 90
    for number, (ours, theirs) in enumerate(zip(made["ours"], made["theirs"], strict=True)):
        assert ours.dtype == theirs.dtype, number
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=lambda text, at=number: f"{at}: {text}")


def test_mel_spectra_are_those_of_transformers() -> None:
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    samples = np.random.default_rng(0).normal(0, 0.1, 8000).astype(np.float32)
    bank = mel_filter_bank(257, 80, 0, 8000, 16_000, mel_scale="htk")
    window = np.pad(window_function(400, "hann"), 56)  # torch centres a short window
    expected = spectrogram(samples, window, 512, 160, 512, power=2.0, mel_filters=bank, mel_floor=0.0)
    made = spectra.MelSpectrogram(16_000, n_fft=512, win_length=400, hop_length=160, n_mels=80)
    np.testing.assert_allclose(made(torch.from_numpy(samples)).numpy(), expected, rtol=1e-3, atol=1e-5)


def test_kaldi_features_have_their_frames_and_levels() -> None:
    found = spectra.fbank(torch.randn(1, 16_000, generator=torch.Generator().manual_seed(0)), num_mel_bins=80)
    assert found.shape == (98, 80)
    louder = spectra.fbank(2 * torch.randn(1, 16_000, generator=torch.Generator().manual_seed(0)), num_mel_bins=80)
    torch.testing.assert_close(louder - found, torch.full_like(found, 2 * np.log(2.0)), atol=1e-3, rtol=0)
    assert spectra.fbank(torch.zeros(1, 100)).shape == (0, 23)


@pytest.mark.parametrize(("old", "new"), [(16_000, 24_000), (24_000, 16_000), (44_100, 16_000)])
def test_resampled_sound_is_the_same_sound(old: int, new: int) -> None:
    at = lambda rate: torch.sin(2 * torch.pi * 440 * torch.arange(rate, dtype=torch.float64) / rate)[None]  # noqa: E731
    found = spectra.resample(at(old), old, new)
    assert found.shape == (1, new)
    torch.testing.assert_close(found[:, 200:-200], at(new)[:, 200:-200], atol=2e-3, rtol=0)


def test_slopes_of_a_line_are_its_slope() -> None:
    line = 3 * torch.arange(10.0).expand(2, 4, 10)
    torch.testing.assert_close(spectra.compute_deltas(line)[..., 2:-2], torch.full((2, 4, 6), 3.0))


def test_numbers_in_words() -> None:
    named = {
        0: "zero",
        19: "nineteen",
        40: "forty",
        64: "sixty-four",
        105: "one hundred and five",
        768: "seven hundred and sixty-eight",
        2001: "two thousand and one",
        9300: "nine thousand, three hundred",
    }
    assert {each: num2words(each) for each in named} == named
    with pytest.raises(ValueError, match="10000"):
        num2words(10_000)


def test_what_is_missing_is_named() -> None:
    if (
        not hasattr(importlib.import_module("torchvision"), "__file__")
        or pictures.__file__ != sys.modules["torchvision"].__file__
    ):
        pytest.skip("torchvision is installed")
    with pytest.raises(ImportError, match="pip install torchvision"):
        importlib.import_module("torchvision.transforms.functional").affine  # noqa: B018
