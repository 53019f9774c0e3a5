"""Cuts pixels into patches in the layout of the reference's image and video processors, without torchvision."""

from __future__ import annotations

from math import ceil, floor, prod, sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from PIL import Image

from omni_core.api import ConfigError
from omni_media.api import Frames
from omni_qwen3.processor_files import IMAGE_FILE, NESTED, VIDEO_FILE, processor_section
from omni_torch.api import Section

VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS = 128 * 32 * 32, 768 * 32 * 32
"""Bounds on the pixels of a resized video frame; the reference's processor uses these and ignores the checkpoint's."""

MOST_PIXELS = 2**31

_MODES = {Image.Resampling.BICUBIC: "bicubic", Image.Resampling.BILINEAR: "bilinear"}


@frozen
class PatchSettings:
    """The settings by which pixels become patches.

    Attributes:
        patch: pixels of a patch's side.
        temporal: frames in a patch.
        merge: patches of the side of one position's window.
        mean, std: of each channel.
        scale: what a pixel is multiplied by.
        min_pixels, max_pixels: bounds on an image's pixels after resizing.
        resample: Pillow's filter for resizing.
    """

    patch: int
    temporal: int
    merge: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    min_pixels: int
    max_pixels: int
    resample: Image.Resampling

    @classmethod
    def read(cls, folder: str | Path) -> tuple[PatchSettings, PatchSettings]:
        """Read a checkpoint's settings for images and for videos.

        Raises:
            ConfigError: the settings are missing, a value is out of range or not implemented, or the two lay out positions differently.
        """
        folder = Path(folder)
        image = processor_section(folder, "image_processor", IMAGE_FILE)
        if image is None:
            raise ConfigError(f"{folder} holds neither {IMAGE_FILE} nor {NESTED}; download the checkpoint again")
        settings = cls.from_section(image)
        video = processor_section(folder, "video_processor", VIDEO_FILE)
        frames = settings if video is None else cls.from_section(video)
        for name, field in (("patch", "patch_size"), ("temporal", "temporal_patch_size"), ("merge", "merge_size")):
            if video is not None and getattr(settings, name) != getattr(frames, name):
                raise video.fail(field, f"that of the image processor, {getattr(settings, name)}")
        return settings, frames

    @classmethod
    def from_section(cls, values: Section) -> PatchSettings:
        """Read the settings of one processor."""
        for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
            values.choice(name, (True,), True)
        size = values.section("size", optional=True)
        low = size.integer("shortest_edge", 1, MOST_PIXELS, 3136)
        high = size.integer("longest_edge", 1, MOST_PIXELS, 12845056)
        return cls(
            patch=values.integer("patch_size", 1, 256, 16),
            temporal=values.integer("temporal_patch_size", 1, 16, 2),
            merge=values.integer("merge_size", 1, 16, 2),
            mean=values.numbers("image_mean", 3, -10.0, 10.0, (0.5, 0.5, 0.5)),
            std=values.numbers("image_std", 3, 1e-6, 10.0, (0.5, 0.5, 0.5)),
            scale=values.number("rescale_factor", 1e-9, 1.0, 1 / 255),
            min_pixels=values.integer("min_pixels", 1, MOST_PIXELS, low),
            max_pixels=values.integer("max_pixels", 1, MOST_PIXELS, high),
            resample=Image.Resampling(values.integer("resample", 0, 5, 3)),
        )


def image_patches(image: Image.Image, settings: PatchSettings) -> tuple[torch.Tensor, list[int]]:
    """Return ``[patches, values]`` float32 and the grid ``[1, height, width]``; the image is repeated to fill a patch's
    frames.
    """
    frame = _resized(image, settings, settings.min_pixels, settings.max_pixels)
    return _patchify(np.repeat(frame[None], settings.temporal, axis=0), settings)


def video_patches(
    frames: Frames, settings: PatchSettings, bounds: tuple[int, int] = (VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS)
) -> tuple[torch.Tensor, list[int]]:
    """Return ``[patches, values]`` float32 and the grid ``[time, height, width]``; the last frame fills the last patch.

    ``bounds``: the fewest and the most pixels of a resized frame.
    """
    sized = np.stack([resized_frame(frame, settings, bounds) for frame in frames])
    missing = -len(sized) % settings.temporal
    if missing:
        sized = np.concatenate([sized, np.repeat(sized[-1:], missing, axis=0)])
    return _patchify(sized, settings)


def resized_frame(
    frame: Frames, settings: PatchSettings, bounds: tuple[int, int] = (VIDEO_MIN_PIXELS, VIDEO_MAX_PIXELS)
) -> Frames:
    """Return a frame ``[H, W, 3]`` in the size in which it is cut; one that has it stays as it is.

    PyTorch's filters give torchvision's pixels, which the reference's video processor takes; Pillow's differ by 1 or 2 of 255.
    """
    height, width = fitting_size(frame.shape[0], frame.shape[1], settings.patch * settings.merge, *bounds)
    if frame.shape[:2] == (height, width):
        return frame
    mode = _MODES.get(settings.resample)
    if mode is None:
        return _resized(Image.fromarray(frame), settings, *bounds)
    pixels = torch.tensor(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]
    sized = torch.nn.functional.interpolate(pixels, (height, width), mode=mode, antialias=True)
    return np.ascontiguousarray(sized[0].permute(1, 2, 0).numpy())


def fitting_size(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return the size to which a picture is resized: multiples of ``factor`` near its own, scaled so that the pixels are in bounds."""
    sides = (height, width)
    rounded = [round(side / factor) * factor for side in sides]
    if prod(rounded) > max_pixels:
        scale = sqrt(height * width / max_pixels)
        rounded = [max(factor, floor(side / scale / factor) * factor) for side in sides]
    elif prod(rounded) < min_pixels:
        scale = sqrt(min_pixels / (height * width))
        rounded = [ceil(side * scale / factor) * factor for side in sides]
    return rounded[0], rounded[1]


def _resized(image: Image.Image, settings: PatchSettings, min_pixels: int, max_pixels: int) -> npt.NDArray[np.uint8]:
    factor = settings.patch * settings.merge
    height, width = fitting_size(image.height, image.width, factor, min_pixels, max_pixels)
    if (height, width) != (image.height, image.width):
        image = image.resize((width, height), settings.resample)
    return np.asarray(image)


def _patchify(frames: npt.NDArray[np.uint8], settings: PatchSettings) -> tuple[torch.Tensor, list[int]]:
    """Normalise frames ``[T, H, W, 3]`` and cut them into patches; the patches of a merge window stay together."""
    time, height, width, channels = frames.shape
    patch, merge, temporal = settings.patch, settings.merge, settings.temporal
    grid = [time // temporal, height // patch, width // patch]
    windows = (grid[1] // merge, grid[2] // merge)
    patches = torch.empty(grid[0], *windows, merge, merge, channels, temporal, patch, patch)
    mean, std = torch.tensor(settings.mean), torch.tensor(settings.std)
    for step, into in enumerate(patches):  # one step at a time: floats of a whole video would be there several times
        pixels = torch.from_numpy(np.ascontiguousarray(frames[step * temporal : (step + 1) * temporal])).float()
        pixels = pixels.mul_(settings.scale).sub_(mean).div_(std)
        cut = pixels.permute(0, 3, 1, 2).reshape(temporal, channels, windows[0], merge, patch, windows[1], merge, patch)
        into.copy_(cut.permute(2, 5, 3, 6, 1, 0, 4, 7))
    return patches.reshape(grid[0] * grid[1] * grid[2], -1), grid
