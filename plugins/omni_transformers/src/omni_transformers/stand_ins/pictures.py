"""Functions of torchvision that transformers' processors of pictures and videos use: in torch alone, with equal results."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional


class InterpolationMode(Enum):
    """Filters by which a picture is resized; the values are those of Pillow's filters and of torch."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_PILLOW = [InterpolationMode[each] for each in ("NEAREST", "LANCZOS", "BILINEAR", "BICUBIC", "BOX", "HAMMING")]
"""By the numbers that Pillow has for them."""


def resize(
    image: torch.Tensor,
    size: int | Sequence[int],
    interpolation: InterpolationMode | int = InterpolationMode.BILINEAR,
    max_size: int | None = None,
    antialias: bool | None = True,
) -> torch.Tensor:
    """Return pictures ``[..., C, height, width]`` in another size: height and width, or that of the shorter side."""
    if isinstance(interpolation, int):
        interpolation = _PILLOW[interpolation]
    old = tuple(image.shape[-2:])
    new = _size(old, [size] if isinstance(size, int) else list(size), max_size)
    if new == old or not image.numel():
        return image
    smooth = interpolation in (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)
    as_it_is = image.is_floating_point() or (image.dtype == torch.uint8 and image.device.type == "cpu")
    pixels = image.reshape(-1, *image.shape[-3:])
    found = functional.interpolate(
        pixels if as_it_is else pixels.float(),
        size=new,
        mode=interpolation.value,
        align_corners=False if smooth else None,
        antialias=bool(antialias) and smooth,
    )
    if not as_it_is:
        found = (found.clamp(0, 255) if image.dtype == torch.uint8 else found).round().to(image.dtype)
    return found.reshape(*image.shape[:-2], *new)


def _size(old: tuple[int, ...], size: list[int], max_size: int | None) -> tuple[int, ...]:
    if len(size) == 2:
        return tuple(size)
    short, long = sorted(old)
    wanted = size[0], int(size[0] * long / short)
    if max_size is not None and wanted[1] > max_size:
        wanted = int(max_size * wanted[0] / wanted[1]), max_size
    return wanted if old[0] <= old[1] else wanted[::-1]


def pad(
    image: torch.Tensor, padding: int | Sequence[int], fill: Any = None, padding_mode: str = "constant"
) -> torch.Tensor:
    """Return pictures with a border. ``padding``: of all sides; of left and top, which right and bottom equal; or of each."""
    sides = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = (sides * 4)[:4] if len(sides) < 4 else sides
    around = (left, right, top, bottom)
    if padding_mode == "constant" and isinstance(fill, Sequence) and len(set(fill)) > 1:
        planes = [functional.pad(each, around, value=value) for each, value in zip(image.unbind(-3), fill, strict=True)]
        return torch.stack(planes, -3)
    if padding_mode == "constant":
        return functional.pad(image, around, value=fill[0] if isinstance(fill, Sequence) else fill or 0)
    mode = {"edge": "replicate"}.get(padding_mode, padding_mode)
    pixels = image.reshape(-1, *image.shape[-3:]).float()
    found = functional.pad(pixels, around, mode=mode).to(image.dtype)
    return found.reshape(*image.shape[:-2], *found.shape[-2:])


def crop(image: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    """Return a part of pictures; what is outside of them is 0."""
    bottom, right = top + height, left + width
    found = image[..., max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    outside = [max(-left, 0), max(-top, 0), max(right - image.shape[-1], 0), max(bottom - image.shape[-2], 0)]
    return pad(found, outside) if any(outside) else found


def normalize(image: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> torch.Tensor:
    """Return ``(image - mean) / std``, by channels."""
    mean, std = (torch.as_tensor(each, dtype=image.dtype, device=image.device) for each in (mean, std))
    mean, std = (each.view(-1, 1, 1) if each.ndim == 1 else each for each in (mean, std))
    return (image.sub_(mean) if inplace else image.sub(mean)).div_(std)


def to_dtype(image: torch.Tensor, dtype: torch.dtype = torch.float32, scale: bool = False) -> torch.Tensor:
    """Return a picture in another type. ``scale``: 0 to 255 become 0 to 1, or the other way round."""
    if image.dtype == dtype or not scale or image.is_floating_point() == dtype.is_floating_point:
        return image.to(dtype)
    return image.to(dtype).mul_(1.0 / 255) if dtype.is_floating_point else image.mul(256 - 1e-3).to(dtype)


def grayscale_to_rgb(image: torch.Tensor) -> torch.Tensor:
    """Return a picture with three equal channels; one that has them, as it is."""
    return image if image.shape[-3] >= 3 else image.expand(*image.shape[:-3], 3, *image.shape[-2:])


def rgb_to_grayscale(image: torch.Tensor, num_output_channels: int = 1) -> torch.Tensor:
    """Return the brightness, in so many channels."""
    if image.shape[-3] == 1:
        gray = image
    else:
        red, green, blue = image.unbind(-3)
        gray = red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(-3).to(image.dtype)
    return gray.expand(*gray.shape[:-3], num_output_channels, *gray.shape[-2:])


def pil_to_tensor(image: Image.Image) -> torch.Tensor:
    """Return a picture of Pillow as uint8 ``[C, height, width]``."""
    pixels = np.array(image, copy=True)
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[:, :, None]).permute(2, 0, 1).contiguous()


def to_pil_image(image: Any, mode: str | None = None) -> Image.Image:
    """Return ``[C, height, width]``, floats in 0 to 1 or uint8, as a picture of Pillow."""
    if isinstance(image, torch.Tensor):
        image = (image.mul(255).byte() if image.is_floating_point() else image).permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image, mode)
