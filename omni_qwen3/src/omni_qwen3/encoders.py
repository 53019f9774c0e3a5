"""The encoder stages: the vision and the audio encoder, each loaded from its own part of the checkpoint only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from omni_core.api import SimpleScheduler, StagePayload
from omni_qwen3 import audio_network, vision_network
from omni_qwen3.checkpoint import load_module, open_checkpoint
from omni_qwen3.config import read_config
from omni_qwen3.payloads import AudioInputs
from omni_torch.api import EncoderCache, pack_linears

Features = tuple[torch.Tensor, ...]
"""An encoder's output for one piece of media: its rows in the prompt, and for pictures those of every deepstack level."""


class ImageEncoder:
    """Encodes patches of images and videos: ``{"image": [N, hidden], "video": ..., "image_deepstack": [...], ...}``."""

    def __init__(self, model_path: str, device: str, dtype: str, cache_mb: int) -> None:
        self._device, self._dtype = device, getattr(torch, dtype)
        self._network, self._merged = self.load(model_path, self._dtype, device)
        self.cache: EncoderCache[Features] = EncoderCache(cache_mb * 2**20)

    def load(self, model_path: str, dtype: torch.dtype, device: str) -> tuple[Any, int]:
        """Return the network, and how many patches become a row."""
        config = read_config(model_path).vision
        return _loaded(vision_network.VisionEncoder, config, model_path, "visual", dtype, device), config.merge**2

    def levels(self, patches: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        """Return the rows of patches, ``[N, hidden]``, and those of each deepstack level."""
        merged, deepstack = self._network(patches, grid.tolist())
        return [merged, *deepstack]

    @torch.inference_mode()
    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        inputs: Mapping[str, Any] = payload.data
        encoded: dict[str, Any] = {}
        for kind, patches in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            if patches in inputs:
                found = self._encode(inputs[patches], inputs[f"{kind}_grid_thw"], inputs[f"{kind}_digests"])
                encoded[kind], *deepstack = found
                if deepstack:
                    encoded[f"{kind}_deepstack"] = deepstack
        return encoded

    def _encode(self, patches: torch.Tensor, grid: torch.Tensor, digests: list[bytes]) -> list[torch.Tensor]:
        sizes = grid.prod(-1).tolist()
        pieces = patches.split(sizes)

        def missing(indices: list[int]) -> list[Features]:
            patches = torch.cat([pieces[index] for index in indices]).to(self._device, self._dtype)
            rows = [sizes[index] // self._merged for index in indices]
            levels = [each.cpu().split(rows) for each in self.levels(patches, grid[indices])]
            return list(zip(*levels, strict=True))

        return [torch.cat(level) for level in zip(*self.cache.encode(digests, missing), strict=True)]


class AudioEncoder:
    """Encodes log-mel features: ``{"audio": [N, hidden]}``, the clips' tokens one after the other."""

    def __init__(self, model_path: str, device: str, dtype: str, cache_mb: int) -> None:
        self._device, self._dtype = device, getattr(torch, dtype)
        self._network = self.load(model_path, self._dtype, device)
        self.cache: EncoderCache[Features] = EncoderCache(cache_mb * 2**20)

    def load(self, model_path: str, dtype: torch.dtype, device: str) -> Any:
        """Return the network."""
        config = read_config(model_path).audio
        return _loaded(audio_network.AudioEncoder, config, model_path, "audio_tower", dtype, device)

    def rows(self, clips: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the rows of clips, ``[N, hidden]``, of their features, ``[bins, frames]`` one after the other."""
        found: torch.Tensor = self._network(clips, lengths.tolist())
        return found

    @torch.inference_mode()
    def __call__(self, payload: StagePayload) -> dict[str, Any]:
        inputs: AudioInputs = payload.data
        lengths = inputs["feature_lengths"]

        def missing(indices: list[int]) -> list[Features]:
            clips = [inputs["input_features"][index] for index in indices]
            packed = torch.cat(clips, dim=1).to(self._device, self._dtype)
            rows = [inputs["clip_tokens"][index] for index in indices]
            return [(clip,) for clip in self.rows(packed, lengths[indices]).cpu().split(rows)]

        clips = self.cache.encode(inputs["audio_digests"], missing)
        return {"audio": torch.cat([clip for (clip,) in clips])}


def _loaded(
    kind: Callable[[Any], nn.Module], config: Any, model_path: str, part: str, dtype: torch.dtype, device: str
) -> nn.Module:
    """Return an encoder of the thinker with its weights. ``part``: its name there."""
    with torch.device("meta"):
        network = kind(config)
    load_module(network, open_checkpoint(model_path), {"": f"thinker.{part}."}, dtype=dtype, device=device)
    pack_linears(network)
    return network


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
    """Make the stage of images and videos. ``cache_mb``: MiB of encoder outputs kept for media that are sent again."""
    return EncoderScheduler(ImageEncoder(model_path, device, dtype, cache_mb))


def create_audio_encoder(
    model_path: str, device: str = "cpu", dtype: str = "float32", cache_mb: int = 256
) -> EncoderScheduler:
    """Make the stage of sound. ``cache_mb``: as for images."""
    return EncoderScheduler(AudioEncoder(model_path, device, dtype, cache_mb))
