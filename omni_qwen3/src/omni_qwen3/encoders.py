"""The encoder stages: transformers' vision and audio towers, filled from their own part of the checkpoint only."""

from __future__ import annotations

from typing import Any

import torch
from transformers.initialization import no_init_weights
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoderConfig,
    Qwen3OmniMoeVisionEncoderConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.simple import SimpleScheduler
from omni_qwen3.checkpoint import Checkpoint, load_module
from omni_qwen3.config import read_config
from omni_qwen3.payloads import AudioInputs, ImageInputs


class ImageEncoder:
    """Patches of images and videos to features: ``{"image": [N, hidden], "video": ..., "image_deepstack": [...], ...}``."""

    def __init__(self, model_path: str, device: str, dtype: str) -> None:
        config = Qwen3OmniMoeVisionEncoderConfig(**read_config(model_path).raw["thinker_config"]["vision_config"])
        with no_init_weights():
            tower = Qwen3OmniMoeVisionEncoder._from_config(config)
        kind = getattr(torch, dtype)
        self._tower = load_module(tower, Checkpoint(model_path), {"": "thinker.visual."}, dtype=kind, device=device)
        self._device, self._dtype = device, kind

    @torch.inference_mode()
    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        inputs: ImageInputs = payload.data
        encoded: dict[str, Any] = {}
        if "pixel_values" in inputs:
            encoded["image"], encoded["image_deepstack"] = self._encode(
                inputs["pixel_values"], inputs["image_grid_thw"]
            )
        if "pixel_values_videos" in inputs:
            encoded["video"], encoded["video_deepstack"] = self._encode(
                inputs["pixel_values_videos"], inputs["video_grid_thw"]
            )
        return encoded

    def _encode(self, patches: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        output = self._tower(patches.to(self._device, self._dtype), grid_thw=grid.to(self._device))
        return output.pooler_output.cpu(), [each.cpu() for each in output.deepstack_features]


class AudioEncoder:
    """Log-mel features to ``{"audio": [N, hidden]}``, the clips' tokens one after the other."""

    def __init__(self, model_path: str, device: str, dtype: str) -> None:
        config = Qwen3OmniMoeAudioEncoderConfig(**read_config(model_path).raw["thinker_config"]["audio_config"])
        with no_init_weights():
            tower = Qwen3OmniMoeAudioEncoder._from_config(config)
        kind = getattr(torch, dtype)
        self._tower = load_module(
            tower, Checkpoint(model_path), {"": "thinker.audio_tower."}, dtype=kind, device=device
        )
        self._device, self._dtype = device, kind

    @torch.inference_mode()
    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        inputs: AudioInputs = payload.data
        lengths = inputs["feature_lengths"].to(self._device)
        features = inputs["input_features"].to(self._device, self._dtype)
        packed = torch.cat([clip[:, :length] for clip, length in zip(features, lengths.tolist(), strict=True)], dim=1)
        output = self._tower(packed, feature_lens=lengths)
        return {"audio": output.last_hidden_state.cpu()}


def create_image_encoder(
    model_path: str, device: str | None = None, gpu_id: int | None = None, dtype: str = "float32"
) -> SimpleScheduler:
    """The image encoder stage."""
    return SimpleScheduler(ImageEncoder(model_path, device or _device(gpu_id), dtype))


def create_audio_encoder(
    model_path: str, device: str | None = None, gpu_id: int | None = None, dtype: str = "float32"
) -> SimpleScheduler:
    """The audio encoder stage."""
    return SimpleScheduler(AudioEncoder(model_path, device or _device(gpu_id), dtype))


def _device(gpu_id: int | None) -> str:
    return "cpu" if gpu_id is None else f"cuda:{gpu_id}"
