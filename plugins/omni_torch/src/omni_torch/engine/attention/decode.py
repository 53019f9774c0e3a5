"""The operation ``paged_decode``: attention of decode rows of several requests over their slots in the paged cache."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from omni_torch.operations.kernels import operation


def _examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: unequal lengths, few and many key heads, and more positions than one kernel program reads."""
    cases = [([1, 5, 40], 8, 2, 64), ([33, 700], 4, 4, 32), ([1, 1300], 16, 1, 128), ([4096] * 8, 32, 4, 128)]
    return [_example(*case, dtype=dtype, generator=generator) for case in cases]


def _example(
    lengths: list[int], heads: int, kv_heads: int, width: int, *, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Any, ...]:
    device, longest, slots = generator.device, max(lengths), sum(lengths) + 7

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    order = torch.randperm(slots, generator=generator, device=device)
    counts = torch.tensor(lengths, device=device)
    column = torch.arange(longest, device=device)
    begins = counts.cumsum(0) - counts
    seen = column < counts.unsqueeze(1)
    read = order[begins.unsqueeze(1) + torch.where(seen, column, 0)]
    query, keys, values = (
        normal(count, each, width) for count, each in ((len(lengths), heads), *[(slots, kv_heads)] * 2)
    )
    return query, keys, values, read, counts, seen, None


@operation("paged_decode", examples=_examples)
def paged_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    read: torch.Tensor,
    lengths: torch.Tensor,
    seen: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """Attend with one query row per request to the positions of that request.

    Args:
        query: ``[n, heads, head_dim]``.
        keys, values: a layer's cache, ``[slots, kv_heads, head_dim]`` each.
        read: ``[n, longest]`` int64, the slots of each request's positions; entries beyond its length repeat one of its own slots.
        lengths: ``[n]`` int64, at least 1.
        seen: ``[n, longest]``, the same as a mask, made once for all layers.
        scale: of the products; ``None``: ``head_dim ** -0.5``.

    Returns:
        ``[n, heads, head_dim]``.
    """
    rows, heads, width = query.shape
    # The query heads of a KV head become rows, so K and V are never repeated.
    grouped = query.view(rows, keys.shape[1], heads // keys.shape[1], width)
    slots = read.flatten()  # `keys[read]` takes five times as long on a CPU
    k, v = (each.index_select(0, slots).view(rows, -1, *each.shape[1:]).transpose(1, 2) for each in (keys, values))
    mixed = F.scaled_dot_product_attention(grouped, k, v, seen[:, None, None, :], scale=scale)
    return mixed.reshape(rows, heads, width)
