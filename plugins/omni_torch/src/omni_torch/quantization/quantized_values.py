"""Rounds weights to int8, float8 or 4-bit values, symmetrically, with one scale per output channel or per group of inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from omni_torch.operations.few_rows import GROUP, packed_int4

LARGEST = 127
"""The largest magnitude of an int8 value."""

FLOAT8 = torch.float8_e4m3fn
"""Floats of 8 bits with 3 bits of fraction, without infinities: "FP8 formats for deep learning" (arXiv:2209.05433)."""

LARGEST_FLOAT8 = 448
"""The largest magnitude of a value of :data:`FLOAT8`."""

SCALES = (-6.8, -7.2, -7.6, 6.8, 7.2, 7.6, 8.0, 8.4, 9.0)
"""The values that a group's largest magnitude may become, for :func:`quantized_int4`."""

BLOCK = 1 << 17
"""Values of a weight that are rounded at once: what is made of them on the way stays in the caches."""


def quantized_int8(weight: torch.Tensor, kind: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 values ``[out, in]`` and a scale per output, ``[out]`` of dtype ``kind``. Of a weight on the meta device their shapes."""
    if weight.is_meta:  # computing there would import torch's compiler, which takes a second and 100 MB
        return weight.new_empty(weight.shape, dtype=torch.int8), weight.new_empty(len(weight), dtype=kind)
    values, scales = weight.new_empty(weight.shape, dtype=torch.int8), weight.new_empty(len(weight), dtype=kind)
    for part, wide in _wide_rows(weight):
        scales[part] = (largest(wide).squeeze(1) / LARGEST).to(kind)
        values[part] = (wide / scales[part].float().unsqueeze(1)).round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
    return values, scales


def quantized_float8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return :data:`FLOAT8` values ``[out, in]`` and float32 scales ``[out]``, which make an output's largest magnitude 448. Of a weight on
    the meta device their shapes.

    A weight that was made of such values and scales has the same values again, if each output has one of 448 among them.
    """
    values = weight.new_empty(weight.shape, dtype=FLOAT8)
    if weight.is_meta:
        return values, weight.new_empty(len(weight), dtype=torch.float32)
    scales = weight.new_empty(len(weight), dtype=torch.float32)
    for part, wide in _wide_rows(weight):
        each = largest(wide) / LARGEST_FLOAT8
        scales[part] = each.squeeze(1)
        values[part] = (wide / each).to(FLOAT8)  # a quotient a little above the largest value is rounded to it
    return values, scales


def quantized_int8_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 values ``[out, in]`` and bfloat16 scales ``[out, in / 32]``, which make a group's largest magnitude 127. Of a weight on
    the meta device their shapes.
    """
    out, size = weight.shape
    if weight.is_meta:
        return weight.new_empty(out, size, dtype=torch.int8), weight.new_empty(out, size // GROUP, dtype=torch.bfloat16)
    values, scales = quantized_int8(weight.reshape(-1, GROUP), torch.bfloat16)
    return values.view(out, size), scales.view(out, -1)


def quantized_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 4-bit values and their scales, in the layout of :func:`omni_torch.operations.few_rows.widened`.

    Values are from -8 to 7. A group's scale is the one of the least squared error among some near its largest magnitude divided by 8, of
    either sign. Of a weight on the meta device only their shapes are made.
    """
    if weight.is_meta:
        out, size = weight.shape
        return weight.new_empty(out, size // 2, dtype=torch.uint8), weight.new_empty(
            out, size // GROUP, dtype=torch.bfloat16
        )
    parts = [_int4(rows) for rows in weight.split(max(1, BLOCK // max(1, weight.shape[1])))]
    values, scales = (each[0] if len(each) == 1 else torch.cat(each) for each in zip(*parts, strict=True))
    return values, scales


def _int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups = weight.float().unflatten(1, (-1, GROUP))
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scales, least = torch.zeros_like(extreme), torch.full_like(extreme, torch.inf)
    for levels in SCALES:
        tried = (extreme / -levels).to(torch.bfloat16).float()
        error = _rounded(groups, tried).mul_(tried).sub_(groups).square_().sum(-1, keepdim=True)
        better = error < least
        scales, least = torch.where(better, tried, scales), torch.where(better, error, least)
    values = (_rounded(groups, scales) + 8).to(torch.uint8)
    return packed_int4(values.flatten(1)), scales.squeeze(-1).to(torch.bfloat16)


def _rounded(groups: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (groups / torch.where(scales == 0, 1.0, scales)).round_().clamp_(-8, 7)


def largest(x: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each row, at least a tiny positive number: ``[n, k]`` to ``[n, 1]``."""
    return x.abs().amax(-1, keepdim=True).clamp_(min=1e-20)


def _wide_rows(weight: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield some rows of a weight after the other, in float32: a copy of all would be twice as large as the weight."""
    rows = max(1, BLOCK // max(1, weight.shape[1]))
    for begin in range(0, len(weight), rows):
        part = slice(begin, begin + rows)
        yield part, weight[part].float()
