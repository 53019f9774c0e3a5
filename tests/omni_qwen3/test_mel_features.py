"""Log-mel features equal those of the reference's feature extractor, bit by bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from omni_core.errors import ConfigError
from omni_qwen3.mel_features import MelFeatures, MelSettings, mel_filters


@pytest.mark.parametrize(
    "lengths",
    [
        [400],
        [16_000],
        [16_001, 400, 8_000],
        [31_999, 401, 480, 479],
        [12_345] * 3,
        [4_000, 4_160, 4_161],
        [320],
        [-1],
        [-1, 8_000],
    ],
)
@pytest.mark.parametrize("change", [{}, {"hop_length": 128, "n_fft": 512}])
def test_clips_of_mixed_lengths(
    tiny: dict[str, Path], tmp_path: Path, lengths: list[int], change: dict[str, int]
) -> None:
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    generator = np.random.default_rng(len(lengths))
    shortest = MelSettings.read(folder, 128).shortest
    lengths = [shortest if length < 0 else length for length in lengths]
    clips = [(generator.standard_normal(length) * 0.1).astype(np.float32) for length in lengths]
    expected = WhisperFeatureExtractor.from_pretrained(folder)(
        clips, sampling_rate=16_000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
    )
    features = MelFeatures(MelSettings.read(folder, 128))(clips)
    for mel, whole in zip(features, expected["input_features"], strict=True):
        torch.testing.assert_close(mel, whole[:, : mel.shape[1]], atol=1e-6, rtol=0)
    assert max(mel.std() for mel in features) > 0.05
    with pytest.raises(RuntimeError, match="Padding size"):
        MelFeatures(MelSettings.read(folder, 128))([clips[0][: shortest - 1]])
    assert [mel.shape[1] for mel in features] == expected["attention_mask"].sum(-1).tolist()


@pytest.mark.parametrize("bins", [80, 128])
def test_filters(bins: int) -> None:
    expected = WhisperFeatureExtractor(feature_size=bins).mel_filters
    np.testing.assert_allclose(mel_filters(bins, 201), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"feature_size": 80}, "feature_size: must be the audio encoder's num_mel_bins, 128, is 80"),
        ({"sampling_rate": 8000}, "sampling_rate: must be 16000"),
        ({"dither": 0.1}, "dither: must be"),
        ({"hop_length": 0}, "hop_length: must be a whole number"),
    ],
)
def test_settings_that_are_not_implemented_are_named(
    tiny: dict[str, Path], tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError) as caught:
        MelSettings.read(folder, 128)
    assert words in str(caught.value)
