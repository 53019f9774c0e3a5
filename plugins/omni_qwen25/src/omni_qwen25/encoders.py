"""The encoder stages: transformers' vision and audio encoder, each loaded from its own part of the checkpoint only."""

from __future__ import annotations

from typing import Any

import torch

from omni_core.api import StagePayload
from omni_qwen3.encoders import EncoderScheduler
from omni_qwen3.payloads import AudioInputs, ImageInputs
from omni_qwen25.config import read_config
from omni_qwen25.networks import load_part
from omni_torch.api import EncoderCache


class ImageEncoder:
    """Encodes patches of images and videos: ``{"image": [N, hidden], "video": ...}``."""

    def __init__(self, model_path: str, device: str, dtype: str, cache_mb: int) -> None:
        self._device, self._dtype = device, getattr(torch, dtype)
        self._network = load_part(model_path, read_config(model_path), "visual", dtype=self._dtype, device=device)
        self._merged: int = self._network.spatial_merge_size**2
        self.cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(cache_mb * 2**20)

    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        inputs: ImageInputs = payload.data
        encoded: dict[str, Any] = {}
        if "pixel_values" in inputs:
            encoded["image"] = self._encode(inputs["pixel_values"], inputs["image_grid_thw"], inputs["image_digests"])
        if "pixel_values_videos" in inputs:
            encoded["video"] = self._encode(
                inputs["pixel_values_videos"], inputs["video_grid_thw"], inputs["video_digests"]
            )
        return encoded

    @torch.inference_mode()
    def _encode(self, patches: torch.Tensor, grid: torch.Tensor, digests: list[bytes]) -> torch.Tensor:
        sizes = grid.prod(-1).tolist()
        pieces = patches.split(sizes)

        def missing(indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
            joined = torch.cat([pieces[index] for index in indices]).to(self._device, self._dtype)
            output = self._network(joined, grid_thw=grid[indices].to(self._device)).pooler_output.cpu()
            return [(each,) for each in output.split([sizes[index] // self._merged for index in indices])]

        return torch.cat([features for (features,) in self.cache.encode(digests, missing)])


class AudioEncoder:
    """Encodes log-mel features: ``{"audio": [N, hidden]}``, the clips' tokens one after the other."""

    def __init__(self, model_path: str, device: str, dtype: str, cache_mb: int) -> None:
        self._device, self._dtype = device, getattr(torch, dtype)
        self._network = load_part(model_path, read_config(model_path), "audio", dtype=self._dtype, device=device)
        self.cache: EncoderCache[tuple[torch.Tensor, ...]] = EncoderCache(cache_mb * 2**20)

    @torch.inference_mode()
    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        inputs: AudioInputs = payload.data
        lengths = inputs["feature_lengths"]

        def missing(indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
            clips = [inputs["input_features"][index] for index in indices]
            packed = torch.cat(clips, dim=1).to(self._device, self._dtype)
            output = self._network(packed, feature_lens=lengths[indices].to(self._device)).last_hidden_state.cpu()
            return [(each,) for each in output.split([inputs["clip_tokens"][index] for index in indices])]

        clips = self.cache.encode(inputs["audio_digests"], missing)
        return {"audio": torch.cat([clip for (clip,) in clips])}


def create_image_encoder(
    model_path: str, device: str = "cpu", dtype: str = "float32", cache_mb: int = 256
) -> EncoderScheduler:
    """Make the image encoder stage. ``cache_mb``: MiB of encoder outputs kept for images and videos that are sent again."""
    return EncoderScheduler(ImageEncoder(model_path, device, dtype, cache_mb))


def create_audio_encoder(
    model_path: str, device: str = "cpu", dtype: str = "float32", cache_mb: int = 256
) -> EncoderScheduler:
    """Make the audio encoder stage. ``cache_mb``: MiB of encoder outputs kept for clips that are sent again."""
    return EncoderScheduler(AudioEncoder(model_path, device, dtype, cache_mb))
