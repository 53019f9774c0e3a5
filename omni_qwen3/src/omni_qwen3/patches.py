"""Pixels to patches, as the reference's image and video processors lay them out, without torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from omni_qwen3.media.video import Frames

VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS = 128 * 32 * 32, 768 * 32 * 32
"""Bounds on a video frame's pixels after resizing: what the reference's processor uses whatever the checkpoint says."""


@frozen
class PatchSettings:
    """How pixels become patches, from ``preprocessor_config.json``."""

    patch: int
    temporal: int
    merge: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min_pixels: int
    max_pixels: int

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PatchSettings:
        size = values.get("size") or {}
        return cls(
            patch=values.get("patch_size", 16),
            temporal=values.get("temporal_patch_size", 2),
            merge=values.get("merge_size", 2),
            mean=tuple(values.get("image_mean", (0.5, 0.5, 0.5))),
            std=tuple(values.get("image_std", (0.5, 0.5, 0.5))),
            min_pixels=values.get("min_pixels") or size.get("shortest_edge", 3136),
            max_pixels=values.get("max_pixels") or size.get("longest_edge", 12845056),
        )


def image_patches(image: Image.Image, settings: PatchSettings) -> tuple[torch.Tensor, list[int]]:
    """``[patches, values]`` float32 and the grid ``[1, height, width]`` in patches. A still is repeated over the time patch."""
    frame = _resized(image, settings, settings.min_pixels, settings.max_pixels)
    return _patchify(np.repeat(frame[None], settings.temporal, axis=0), settings)


def video_patches(frames: Frames, settings: PatchSettings) -> tuple[torch.Tensor, list[int]]:
    """``[patches, values]`` float32 and the grid ``[time, height, width]``. An odd last frame is repeated."""
    sized = np.stack(
        [_resized(Image.fromarray(frame), settings, VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS) for frame in frames]
    )
    missing = -len(sized) % settings.temporal
    if missing:
        sized = np.concatenate([sized, np.repeat(sized[-1:], missing, axis=0)])
    return _patchify(sized, settings)


def _resized(image: Image.Image, settings: PatchSettings, min_pixels: int, max_pixels: int) -> npt.NDArray[np.uint8]:
    factor = settings.patch * settings.merge
    height, width = smart_resize(image.height, image.width, factor, min_pixels, max_pixels)
    if (height, width) != (image.height, image.width):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def _patchify(frames: npt.NDArray[np.uint8], settings: PatchSettings) -> tuple[torch.Tensor, list[int]]:
    """Normalised frames ``[T, H, W, 3]`` cut into patches; the patches of a merge window stay together."""
    pixels = torch.from_numpy(np.ascontiguousarray(frames)).float() * (1.0 / 255.0)
    pixels = (pixels - torch.tensor(settings.mean)) / torch.tensor(settings.std)
    time, height, width, channels = pixels.shape
    patch, merge, temporal = settings.patch, settings.merge, settings.temporal
    grid = [time // temporal, height // patch, width // patch]
    cut = pixels.permute(0, 3, 1, 2).reshape(
        grid[0], temporal, channels, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch
    )
    ordered = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(grid[0] * grid[1] * grid[2], -1).contiguous(), grid
