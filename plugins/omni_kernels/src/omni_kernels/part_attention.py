"""Attention of decode steps, with norms, rotary positions and the cache's write: requests are read in parts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from attrs import frozen

from omni_core.api import DecodeCache
from omni_kernels.overlap import AT_ONCE, allow_next, launched, wait_for_previous
from omni_torch.api import DecoderStack, LayerWeights

MANY_ROWS = 16
"""From this number of rows on, a program attends to more positions, because there are enough programs."""


@triton.jit
def _turned(
    projected, weights, cos, sin, eps, head, heads, half, NORM: tl.constexpr, PAIRS: tl.constexpr, HALF: tl.constexpr
):
    """Return both halves of heads ``[n, 1]`` of a row after norm and rotation, ``[n, HALF]`` each, float32."""
    column = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (column < half)
    place = projected + head * (2 * half)
    if PAIRS:
        first, second = 2 * column, 2 * column + 1
    else:
        first, second = column, column + half
    x = tl.load(place + first, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(place + second, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(x * x + y * y, axis=1)[:, None] / (2 * half) + eps)
        weight = weights + head * (2 * half)
        x *= scale * tl.load(weight + first, mask=inside, other=0.0).to(tl.float32)
        y *= scale * tl.load(weight + second, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + column, mask=column < half, other=0.0).to(tl.float32)
    s = tl.load(sin + column, mask=column < half, other=0.0).to(tl.float32)
    return x * c - y * s, y * c + x * s


@triton.jit
def _attended(
    x,
    y,
    scale,
    highest,
    total,
    sums,
    keys,
    values,
    slot,
    there,
    first,
    second,
    column,
    narrow,
    wide,
    keys_slot,
    values_slot,
    EXACT: tl.constexpr,
):
    """Add some positions of the cache to a running softmax: the largest score, the sum of weights, and of weighted values."""
    place = keys + slot[:, None] * keys_slot
    kx = tl.load(place + first[None, :], mask=there[:, None] & narrow, other=0.0)
    ky = tl.load(place + second[None, :], mask=there[:, None] & narrow, other=0.0)
    v = tl.load(values + slot[:, None] * values_slot + column[None, :], mask=there[:, None] & wide, other=0.0)
    if EXACT:
        kx, ky, v = kx.to(tl.float32), ky.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(x, tl.trans(kx), input_precision="ieee")
    scores = tl.dot(y, tl.trans(ky), scores, input_precision="ieee") * scale
    scores = tl.where(there[None, :], scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, axis=1))
    kept, share = tl.exp(highest - higher), tl.exp(scores - higher[:, None])
    sums = sums * kept[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
    return higher, total * kept + tl.sum(share, axis=1), sums


@triton.jit
def _attend(
    projected,
    weights,
    cos,
    sin,
    pages,
    lengths,
    keys,
    values,
    mixed,
    weight,
    output,
    eps,
    scale,
    kv_heads,
    group,
    half,
    block,
    width,
    parts,
    projected_row,
    cos_row,
    sin_row,
    pages_row,
    keys_slot,
    keys_head,
    values_slot,
    values_head,
    NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    ALONE: tl.constexpr,
    EXACT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Compute one part of one request for the query heads of one key head. The part of the newest position, which is the last,
    writes its key and value to the cache. What does not depend on the length is loaded while the length is.
    """
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    wait_for_previous(OVERLAP)
    newest = tl.load(lengths + row) - 1
    begin = part * PART
    pages += row * pages_row
    position = begin + tl.arange(0, BLOCK)
    page = tl.load(pages + position // block, mask=position < width * block, other=0)
    member, half_column, column = tl.arange(0, GROUP)[:, None], tl.arange(0, HALF), tl.arange(0, 2 * HALF)
    heads = kv_heads * group
    projected += row * projected_row
    cos, sin = cos + row * cos_row, sin + row * sin_row
    keys, values = keys + kv_head * keys_head, values + kv_head * values_head
    dtype = keys.dtype.element_ty
    if PAIRS:
        first, second = 2 * half_column, 2 * half_column + 1
    else:
        first, second = half_column, half_column + half
    head = tl.where(member < group, kv_head * group + member, heads)
    x, y = _turned(projected, weights, cos, sin, eps, head, heads, half, NORM, PAIRS, HALF)
    own = tl.full([1, 1], heads, tl.int32) + kv_head
    new_x, new_y = _turned(projected, weights, cos, sin, eps, own, heads + kv_heads, half, NORM, PAIRS, HALF)
    wide, narrow = column[None, :] < 2 * half, half_column[None, :] < half
    new_v = tl.load(projected + (heads + kv_heads + kv_head) * (2 * half) + column[None, :], mask=wide, other=0.0)
    x, y, new_x, new_y, new_v = x.to(dtype), y.to(dtype), new_x.to(dtype), new_y.to(dtype), new_v.to(dtype)
    if begin > newest:
        return
    mine = newest < begin + PART
    products = x.to(tl.float32) * new_x.to(tl.float32) + y.to(tl.float32) * new_y.to(tl.float32)
    highest = tl.where(mine, tl.sum(products, axis=1) * scale, float("-inf"))
    total = tl.where(mine, tl.full([GROUP], 1.0, tl.float32), 0.0)
    sums = tl.where(mine, tl.zeros([GROUP, 2 * HALF], tl.float32) + new_v.to(tl.float32), 0.0)
    if EXACT:
        x, y = x.to(tl.float32), y.to(tl.float32)
    end = tl.minimum(begin + PART, newest)
    if BLOCK == PART:
        slot, there = page.to(tl.int64) * block + position % block, position < end
        highest, total, sums = _attended(
            x, y, scale, highest, total, sums, keys, values, slot, there, first, second, column, narrow, wide,
            keys_slot, values_slot, EXACT
        )  # fmt: skip
    else:
        for start in range(begin, end, BLOCK):
            position = start + tl.arange(0, BLOCK)
            there = position < end
            page = tl.load(pages + position // block, mask=there, other=0)
            slot = page.to(tl.int64) * block + position % block
            highest, total, sums = _attended(
            x, y, scale, highest, total, sums, keys, values, slot, there, first, second, column, narrow, wide,
            keys_slot, values_slot, EXACT
        )  # fmt: skip
    allow_next(OVERLAP)
    slot = tl.load(pages + newest // block).to(tl.int64) * block + newest % block
    stored = tl.where(mine, half, 0)
    tl.store(keys + slot * keys_slot + first[None, :], new_x, mask=half_column[None, :] < stored)
    tl.store(keys + slot * keys_slot + second[None, :], new_y, mask=half_column[None, :] < stored)
    tl.store(values + slot * values_slot + column[None, :], new_v, mask=column[None, :] < 2 * stored)
    place = row * heads + kv_head * group + member
    written = (member < group) & wide
    sums = sums / total[:, None]
    if ALONE:
        tl.store(output + place * (2 * half) + column[None, :], sums.to(output.dtype.element_ty), mask=written)
    else:
        place = place * parts + part
        tl.store(mixed + place * (2 * half) + column[None, :], sums, mask=written)
        tl.store(weight + place, (highest + tl.log(total))[:, None], mask=member < group)


@triton.jit
def _join(
    mixed,
    weight,
    lengths,
    output,
    heads,
    width,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Combine the parts of one request's head. Parts beyond the request's length were never written."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    wait_for_previous(OVERLAP)
    column, number = tl.arange(0, WIDTH), tl.arange(0, PARTS)
    inside = column < width
    first = (row * heads + head) * parts
    count = (tl.load(lengths + row) + PART - 1) // PART
    highest = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    joined = tl.zeros([WIDTH], tl.float32)
    for begin in range(0, count, PARTS):
        there = begin + number < count
        weights = tl.load(weight + first + begin + number, mask=there, other=float("-inf"))
        place = mixed + (first + begin + number[:, None]) * width + column[None, :]
        values = tl.load(place, mask=there[:, None] & inside[None, :], other=0.0)
        higher = tl.maximum(highest, tl.max(weights, axis=0))
        kept, shares = tl.exp(highest - higher), tl.exp(weights - higher)
        total = total * kept + tl.sum(shares, axis=0)
        joined = joined * kept + tl.sum(values * shares[:, None], axis=0)
        highest = higher
    allow_next(OVERLAP)
    tl.store(output + (row * heads + head) * width + column, (joined / total).to(output.dtype.element_ty), mask=inside)


@frozen
class Span:
    """Positions that a program of attention reads: ``part`` of one request, ``block`` at a time."""

    part: int
    block: int


SPAN_OF_FEW, SPAN_OF_MANY = Span(64, 64), Span(512, 64)
"""Of few rows, which need many programs, and from :data:`MANY_ROWS` on."""


def _exact(x: torch.Tensor) -> bool:
    # The interpreter multiplies the bits of bfloat16 as integers.
    return x.dtype == torch.bfloat16 and not isinstance(_attend, triton.JITFunction)


def attend(
    projected: torch.Tensor,
    layer: LayerWeights,
    stack: DecoderStack,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cache: DecodeCache,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Write the newest key and value of each row to the cache, and attend: ``[n, heads * head_dim]``.

    Args:
        projected: ``[n, (heads + 2 * kv_heads) * head_dim]``, before norms and rotation.
    """
    rows, heads, kv_heads, width = len(projected), stack.heads, stack.kv_heads, stack.head_dim
    span = SPAN_OF_FEW if rows < MANY_ROWS else SPAN_OF_MANY
    parts = triton.cdiv(cache.pages.shape[1] * cache.block_size, span.part)
    output = torch.empty(rows, heads * width, dtype=keys.dtype, device=projected.device)
    many = (rows, heads, parts) if parts > 1 else (0,)
    mixed = torch.empty(*many, width, dtype=torch.float32, device=projected.device)
    weight = torch.empty(many, dtype=torch.float32, device=projected.device)
    half = max(triton.next_power_of_2(width // 2), 16)
    _attend[(rows, kv_heads, parts)](
        projected,
        projected if layer.head_norms is None else layer.head_norms,
        cos,
        sin,
        cache.pages,
        cache.lengths,
        keys,
        values,
        mixed,
        weight,
        output,
        stack.eps,
        width**-0.5,
        kv_heads,
        heads // kv_heads,
        width // 2,
        cache.block_size,
        cache.pages.shape[1],
        parts,
        projected.stride(0),
        cos.stride(0),
        sin.stride(0),
        cache.pages.stride(0),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        NORM=layer.head_norms is not None,
        PAIRS=stack.pairs,
        PART=span.part,
        BLOCK=span.block,
        GROUP=max(triton.next_power_of_2(heads // kv_heads), 16),
        HALF=half,
        ALONE=parts == 1,
        EXACT=_exact(keys),
        **launched(projected.device, AT_ONCE),
    )
    if parts > 1:
        _join[(rows, heads)](
            mixed,
            weight,
            cache.lengths,
            output,
            heads,
            width,
            parts,
            PART=span.part,
            PARTS=min(triton.next_power_of_2(parts), 16),
            WIDTH=triton.next_power_of_2(width),
            **launched(projected.device, AT_ONCE),
        )
    return output
