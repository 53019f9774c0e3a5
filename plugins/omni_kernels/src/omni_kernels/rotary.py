"""Rotary positions: each pair of elements is read once and written once, where PyTorch makes four tensors.

Two kernels: rotation alone, and fused with the norms and the cache write between a projection and attention.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from omni_torch import api as operations

MOST_HEADS = 8
"""Heads of one row per program. More heads read a row's angles once, but a program holds them all in registers."""


@triton.jit
def _turn(x, cos, sin, output, heads, half, x_row, x_head, cos_row, sin_row, HALF: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, HALF)
    inside = column < half
    place = x + row * x_row + head * x_head + column
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + row * cos_row + column, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + row * sin_row + column, mask=inside, other=0.0).to(tl.float32)
    turned = output + (row * heads + head) * half * 2 + column
    tl.store(turned, (first * c - second * s).to(output.dtype.element_ty), mask=inside)
    tl.store(turned + half, (second * c + first * s).to(output.dtype.element_ty), mask=inside)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See :func:`omni_torch.operations.shared.rotary`."""
    rows, heads, width = x.shape
    x, cos, sin = (each if each.stride(-1) == 1 else each.contiguous() for each in (x, cos, sin))
    output = torch.empty(rows, heads, width, dtype=x.dtype, device=x.device)
    if x.numel():
        _turn[(rows, heads)](
            x,
            cos,
            sin,
            output,
            heads,
            width // 2,
            x.stride(0),
            x.stride(1),
            cos.stride(0),
            sin.stride(0),
            HALF=triton.next_power_of_2(width // 2),
            num_warps=1,
        )
    return output


@triton.jit
def _norm_turn_store(
    projected,
    weights,
    cos,
    sin,
    slots,
    queries,
    keys,
    values,
    eps,
    heads,
    kv_heads,
    half,
    projected_row,
    projected_head,
    cos_row,
    sin_row,
    keys_slot,
    keys_head,
    values_slot,
    values_head,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Process some heads of one row: all of them queries, or all keys, or all values."""
    row, first_head = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS
    head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < HEADS) & (column < half)
    place = projected + row * projected_row + (first_head + head) * projected_head + column
    first = tl.load(place, mask=inside, other=0.0)
    second = tl.load(place + half, mask=inside, other=0.0)
    if first_head >= heads + kv_heads:
        stored = (
            values + tl.load(slots + row) * values_slot + (first_head - heads - kv_heads + head) * values_head + column
        )
        tl.store(stored, first, mask=inside)
        tl.store(stored + half, second, mask=inside)
    else:
        x, y = first.to(tl.float32), second.to(tl.float32)
        squares = tl.sum(x * x + y * y, axis=1)[:, None]
        scale = 1.0 / tl.sqrt(squares / (2 * half) + eps)
        weight = weights + (first_head + head) * (2 * half) + column
        x *= scale * tl.load(weight, mask=inside, other=0.0).to(tl.float32)
        y *= scale * tl.load(weight + half, mask=inside, other=0.0).to(tl.float32)
        c = tl.load(cos + row * cos_row + column, mask=column < half, other=0.0).to(tl.float32)
        s = tl.load(sin + row * sin_row + column, mask=column < half, other=0.0).to(tl.float32)
        left, right = (x * c - y * s).to(queries.dtype.element_ty), (y * c + x * s).to(queries.dtype.element_ty)
        if first_head < heads:
            turned = queries + (row * heads + first_head + head) * (2 * half) + column
            tl.store(turned, left, mask=inside)
            tl.store(turned + half, right, mask=inside)
        else:
            stored = keys + tl.load(slots + row) * keys_slot + (first_head - heads + head) * keys_head + column
            tl.store(stored, left, mask=inside)
            tl.store(stored + half, right, mask=inside)


def norm_rotary_store(
    projected: torch.Tensor,
    weights: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """See :func:`omni_torch.operations.shared.norm_rotary_store`."""
    if keys.stride(-1) != 1 or values.stride(-1) != 1:
        return operations.norm_rotary_store.reference(projected, weights, cos, sin, slots, keys, values, eps)
    rows, _, width = projected.shape
    kv_heads = keys.shape[1]
    heads = len(weights) - kv_heads
    projected, cos, sin = (each if each.stride(-1) == 1 else each.contiguous() for each in (projected, cos, sin))
    queries = torch.empty(rows, heads, width, dtype=projected.dtype, device=projected.device)
    at_once = math.gcd(heads, kv_heads, MOST_HEADS)
    if rows:
        _norm_turn_store[(rows, (heads + 2 * kv_heads) // at_once)](
            projected,
            weights.contiguous(),
            cos,
            sin,
            slots.contiguous(),
            queries,
            keys,
            values,
            eps,
            heads,
            kv_heads,
            width // 2,
            projected.stride(0),
            projected.stride(1),
            cos.stride(0),
            sin.stride(0),
            keys.stride(0),
            keys.stride(1),
            values.stride(0),
            values.stride(1),
            HEADS=at_once,
            HALF=triton.next_power_of_2(width // 2),
            num_warps=min(at_once, 4),
        )
    return queries
