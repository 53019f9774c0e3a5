"""Attention within the segments of packed rows: the frames of videos, the windows of clips."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import torch
import torch.nn.functional as F

Segments = list[tuple[int, int]]
"""The division of packed rows: so many segments of so many rows each, then others."""


def segments_of(lengths: Iterable[int]) -> Segments:
    """Return the segments of these lengths; neighbours of equal length are put together. Those without rows are left out."""
    return [(len(list(equal)), length) for length, equal in groupby(lengths) if length]


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Attend within each segment, in both directions.

    Args:
        query, key, value: ``[rows, heads, head_dim]``.
        segments: cover all rows.

    Returns:
        ``[rows, heads * head_dim]``.
    """
    mixed, begin = [], 0
    for count, length in segments:
        part = slice(begin, begin + count * length)
        parts = (each[part].unflatten(0, (count, length)).transpose(1, 2) for each in (query, key, value))
        mixed.append(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(0, 1).flatten(1))
        begin = part.stop
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)
