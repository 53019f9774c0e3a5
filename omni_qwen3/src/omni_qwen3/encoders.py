"""The encoder stages: the vision and the audio encoder, each loaded from its own part of the checkpoint only."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from omni_core.api import SimpleScheduler, StagePayload
from omni_qwen3 import audio_network, vision_network
from omni_qwen3.checkpoint import load_module, open_checkpoint
from omni_qwen3.config import read_config
from omni_qwen3.payloads import AudioInputs, ImageInputs
from omni_torch.api import EncoderCache, pack_linears

Features = tuple[torch.Tensor, ...]
"""An encoder's output for one piece of media: its rows in the prompt, and for pictures those of every deepstack level."""


class ImageEncoder:
    """Encodes patches of images and videos: ``{"image": [N, hidden], "video": ..., "image_deepstack": [...], ...}``."""

    def __init__(self, model_path: str, device: str, dtype: str, cache_mb: int) -> None:
        config, kind = read_config(model_path).vision, getattr(torch, dtype)
        with torch.device("meta"):
            network = vision_network.VisionEncoder(config)
        self._network = load_module(
            network, open_checkpoint(model_path), {"": "thinker.visual."}, dtype=kind, device=device
        )
        self._device, self._dtype = device, kind
        pack_linears(self._network)
        self._merged = config.merge**2
        self.cache: EncoderCache[Features] = EncoderCache(cache_mb * 2**20)

    @torch.inference_mode()
    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        inputs: ImageInputs = payload.data
        encoded: dict[str, Any] = {}
        if "pixel_values" in inputs:
            encoded["image"], encoded["image_deepstack"] = self._encode(
                inputs["pixel_values"], inputs["image_grid_thw"], inputs["image_digests"]
            )
        if "pixel_values_videos" in inputs:
            encoded["video"], encoded["video_deepstack"] = self._encode(
                inputs["pixel_values_videos"], inputs["video_grid_thw"], inputs["video_digests"]
            )
        return encoded

    def _encode(
        self, patches: torch.Tensor, grid: torch.Tensor, digests: list[bytes]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        sizes = grid.prod(-1).tolist()
        pieces = patches.split(sizes)

        def missing(indices: list[int]) -> list[Features]:
            patches = torch.cat([pieces[index] for index in indices]).to(self._device, self._dtype)
            merged, deepstack = self._network(patches, grid[indices].tolist())
            rows = [sizes[index] // self._merged for index in indices]
            levels = [each.cpu().split(rows) for each in (merged, *deepstack)]
            return list(zip(*levels, strict=True))

        features, *deepstack = (torch.cat(level) for level in zip(*self.cache.encode(digests, missing), strict=True))
        return features, deepstack


class AudioEncoder:
    """Encodes log-mel features: ``{"audio": [N, hidden]}``, the clips' tokens one after the other."""

    def __init__(self, model_path: str, device: str, dtype: str, cache_mb: int) -> None:
        config, kind = read_config(model_path).audio, getattr(torch, dtype)
        with torch.device("meta"):
            network = audio_network.AudioEncoder(config)
        prefixes = {"": "thinker.audio_tower."}
        self._network = load_module(network, open_checkpoint(model_path), prefixes, dtype=kind, device=device)
        pack_linears(self._network)
        self._device, self._dtype = device, kind
        self.cache: EncoderCache[Features] = EncoderCache(cache_mb * 2**20)

    @torch.inference_mode()
    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        inputs: AudioInputs = payload.data
        lengths = inputs["feature_lengths"]

        def missing(indices: list[int]) -> list[Features]:
            clips = [inputs["input_features"][index] for index in indices]
            packed = torch.cat(clips, dim=1).to(self._device, self._dtype)
            output = self._network(packed, lengths[indices].tolist())
            rows = [inputs["clip_tokens"][index] for index in indices]
            return [(clip,) for clip in output.cpu().split(rows)]

        clips = self.cache.encode(inputs["audio_digests"], missing)
        return {"audio": torch.cat([clip for (clip,) in clips])}


class Encoder(Protocol):
    """An encoder that keeps its outputs."""

    cache: EncoderCache[tuple[torch.Tensor, ...]]

    def __call__(self, payload: StagePayload, /) -> dict[str, Any]: ...


class EncoderScheduler(SimpleScheduler):
    """A :class:`SimpleScheduler` whose statistics include those of its encoder's cache."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self._cache = encoder.cache

    def statistics(self) -> dict[str, float]:
        return {**super().statistics(), **self._cache.statistics()}

    def flush_caches(self) -> None:
        """Forget what was encoded before. From any thread."""
        self._cache.clear()


def create_image_encoder(
    model_path: str, device: str = "cpu", dtype: str = "float32", cache_mb: int = 256
) -> EncoderScheduler:
    """Make the image encoder stage. ``cache_mb``: MiB of encoder outputs kept for images and videos that are sent
    again.
    """
    return EncoderScheduler(ImageEncoder(model_path, device, dtype, cache_mb))


def create_audio_encoder(
    model_path: str, device: str = "cpu", dtype: str = "float32", cache_mb: int = 256
) -> EncoderScheduler:
    """Make the audio encoder stage. ``cache_mb``: MiB of encoder outputs kept for clips that are sent again."""
    return EncoderScheduler(AudioEncoder(model_path, device, dtype, cache_mb))
