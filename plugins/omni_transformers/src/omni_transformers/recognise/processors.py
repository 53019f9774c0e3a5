"""Processors of recognisers: one with features and a tokenizer in any case, and that of Granite Speech 5 without torchaudio."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoFeatureExtractor, AutoTokenizer, BatchFeature, Wav2Vec2Processor
from transformers.audio_utils import mel_filter_bank

from omni_core.api import ConfigError
from omni_media.api import Samples
from omni_transformers.checkpoints import Source
from omni_transformers.loading import load_processor

logger = logging.getLogger(__name__)

STACKED = 2
"""Frames in a row of the features."""


def processor_of(source: Source) -> Any:
    """Return the processor of a checkpoint: with a ``feature_extractor`` and a ``tokenizer``, also where it names none that has both.

    Raises:
        ConfigError: a part is missing, or cannot be read.
    """
    if source.architecture.name == "GraniteSpeech5ForCTC":
        return GraniteProcessor(source)
    files = [
        source.file(each) for each in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
    ]
    if any(each.get("processor_class") == "Wav2Vec2ProcessorWithLM" for each in files):
        logger.warning("%s: its language model is not used; the text is that of the network alone", source.folder)
    else:
        found = load_processor(str(source.folder))
        if hasattr(found, "tokenizer") and hasattr(found, "feature_extractor"):
            return found
    return Wav2Vec2Processor(feature_extractor_of(source), _part(source, AutoTokenizer, "tokenizer"))


def feature_extractor_of(source: Source) -> Any:
    """Return the feature extractor of a checkpoint. Raises ConfigError: it is missing, or cannot be read."""
    return _part(source, AutoFeatureExtractor, "feature extractor")


def _part(source: Source, kind: Any, name: str) -> Any:
    try:
        return kind.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ConfigError(f"{source.folder}: has no {name} that can be read: {error}") from error


class GraniteProcessor:
    """Log-mel frames with their deltas, two by two; the settings are those of the checkpoint."""

    def __init__(self, source: Source) -> None:
        told = source.file("processor_config.json").get("feature_extractor") or source.file("preprocessor_config.json")
        self.tokenizer = AutoTokenizer.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False)
        self.feature_extractor = SimpleNamespace(sampling_rate=told.get("sampling_rate", 16_000))
        self._bins, self._fft = told.get("num_mel_bins", 80), told.get("n_fft", 512)
        self._window, self._hop = told.get("win_length", 400), told.get("hop_length", 160)
        self._floor = told.get("logmel_floor_db", 8.0)
        if told.get("delta_win_length", 3) != 3:
            raise ValueError(f"delta_win_length: only 3 is supported, is {told['delta_win_length']}")
        rate = self.feature_extractor.sampling_rate
        filters = mel_filter_bank(self._fft // 2 + 1, self._bins, 0.0, rate / 2, rate, norm=None, mel_scale="htk")
        self._filters = torch.from_numpy(filters).float()

    def __call__(self, audio: Sequence[Samples], sampling_rate: int, return_tensors: str) -> BatchFeature:
        """Return the features of recordings of equal lengths, float32 ``[batch, frames, 4 * bins]``."""
        sound = torch.from_numpy(np.stack(audio))
        frames = STACKED * -(-(sound.shape[1] // self._hop) // STACKED)
        sound = functional.pad(sound, (0, max(0, (frames - 1) * self._hop + 1 - sound.shape[1])))
        window = torch.hann_window(self._window)
        spectrum = torch.stft(sound, self._fft, self._hop, self._window, window, return_complex=True).abs() ** 2
        mel = (self._filters.T @ spectrum)[..., :frames].clamp_min(1e-10).log10()
        mel = torch.maximum(mel, mel.amax((-2, -1), keepdim=True) - self._floor) / 4 + 1
        beside = functional.pad(mel, (1, 1), mode="replicate")
        both = torch.cat([mel, (beside[..., 2:] - beside[..., :-2]) / 2], dim=-2).transpose(-1, -2)
        features = both.reshape(len(sound), -1, STACKED * both.shape[-1])
        mask = torch.ones(features.shape[:2], dtype=torch.long)
        made: Any = BatchFeature({"input_features": features, "attention_mask": mask})
        return made
