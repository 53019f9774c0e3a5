"""The encoder stages: transformers' vision and audio encoder, each loaded from its own part of the checkpoint only."""

from __future__ import annotations

from typing import Any

import torch

from omni_qwen3 import encoders
from omni_qwen3.encoders import EncoderScheduler
from omni_qwen25.config import read_config
from omni_qwen25.networks import load_part


class ImageEncoder(encoders.ImageEncoder):
    """Encodes patches of images and videos: ``{"image": [N, hidden], "video": ...}``."""

    def load(self, model_path: str, dtype: torch.dtype, device: str) -> tuple[Any, int]:
        network = load_part(model_path, read_config(model_path), "visual", dtype=dtype, device=device)
        return network, network.spatial_merge_size**2

    def levels(self, patches: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        return [self._network(patches, grid_thw=grid.to(self._device)).pooler_output]


class AudioEncoder(encoders.AudioEncoder):
    """Encodes log-mel features: ``{"audio": [N, hidden]}``, the clips' tokens one after the other."""

    def load(self, model_path: str, dtype: torch.dtype, device: str) -> Any:
        return load_part(model_path, read_config(model_path), "audio", dtype=dtype, device=device)

    def rows(self, clips: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._network(clips, feature_lens=lengths.to(self._device)).last_hidden_state
        return found


def create_image_encoder(
    model_path: str, device: str = "cpu", dtype: str = "float32", cache_mb: int = 256
) -> EncoderScheduler:
    """Make the stage of images and videos. ``cache_mb``: MiB of encoder outputs kept for media that are sent again."""
    return EncoderScheduler(ImageEncoder(model_path, device, dtype, cache_mb))


def create_audio_encoder(
    model_path: str, device: str = "cpu", dtype: str = "float32", cache_mb: int = 256
) -> EncoderScheduler:
    """Make the stage of sound. ``cache_mb``: as for images."""
    return EncoderScheduler(AudioEncoder(model_path, device, dtype, cache_mb))
