"""Decode attention over a paged cache: keys and values are read in place, once for all query heads that share them.

A request's positions are cut into parts of a fixed length, so that few long requests fill a GPU, and so that a
request's result does not depend on the lengths of the other requests. A second kernel combines the parts, in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

PART = 512
"""The number of positions that one program reads."""

BLOCK = 32
"""The number of positions that it reads per iteration."""


@triton.jit
def _attend_part(
    query,
    keys,
    values,
    read,
    lengths,
    mixed,
    weight,
    scale,
    longest,
    kv_heads,
    group,
    width,
    parts,
    query_row,
    query_head,
    keys_slot,
    keys_head,
    values_slot,
    values_head,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Compute one part of one request for the query heads of one key head: their weighted values, and the log of the
    sum of weights.
    """
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    head, column = tl.arange(0, GROUP), tl.arange(0, WIDTH)
    inside = (head[:, None] < group) & (column[None, :] < width)
    heads = kv_head * group + head
    q = tl.load(query + row * query_row + heads[:, None] * query_head + column[None, :], mask=inside, other=0.0)
    highest = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    output = tl.zeros([GROUP, WIDTH], tl.float32)
    end = tl.minimum((part + 1) * PART, tl.load(lengths + row).to(tl.int32))
    for begin in range(part * PART, end, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        there = position < end
        slot = tl.load(read + row * longest + position, mask=there, other=0)
        filled = there[:, None] & (column[None, :] < width)
        k = tl.load(keys + slot[:, None] * keys_slot + kv_head * keys_head + column[None, :], mask=filled, other=0.0)
        v = tl.load(
            values + slot[:, None] * values_slot + kv_head * values_head + column[None, :], mask=filled, other=0.0
        )
        if EXACT:
            q, k, v = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        kept = tl.exp(highest - higher)
        weights = tl.exp(scores - higher[:, None])
        total = total * kept + tl.sum(weights, axis=1)
        output = output * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = higher
    place = (row * kv_heads * group + heads) * parts + part
    filled_heads = head < group
    if end > part * PART:
        tl.store(weight + place, highest + tl.log(total), mask=filled_heads)
        tl.store(mixed + place[:, None] * width + column[None, :], output / total[:, None], mask=inside)


@triton.jit
def _join_parts(mixed, weight, lengths, output, heads, width, parts, PART: tl.constexpr, WIDTH: tl.constexpr):
    """Combine the parts of one request's head, weighted by their sums. Parts beyond the request's length were never
    written.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    inside = column < width
    first = (row * heads + head) * parts
    highest = tl.load(weight + first)
    total = highest * 0.0 + 1.0
    joined = tl.load(mixed + first * width + column, mask=inside, other=0.0)
    count = (tl.load(lengths + row).to(tl.int32) + PART - 1) // PART
    for part in range(1, count):
        each = tl.load(weight + first + part)
        higher = tl.maximum(highest, each)
        kept, added = tl.exp(highest - higher), tl.exp(each - higher)
        values = tl.load(mixed + (first + part) * width + column, mask=inside, other=0.0)
        joined = joined * kept + values * added
        total = total * kept + added
        highest = higher
    tl.store(output + (row * heads + head) * width + column, (joined / total).to(output.dtype.element_ty), mask=inside)


def paged_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    read: torch.Tensor,
    lengths: torch.Tensor,
    seen: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """See :func:`omni_torch.engine.attention.decode.paged_decode`."""
    rows, heads, width = query.shape
    kv_heads, longest = keys.shape[1], read.shape[1]
    group, parts = heads // kv_heads, triton.cdiv(longest, PART)
    query, keys, values = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, keys, values))
    read, lengths = read.contiguous(), lengths.contiguous()
    mixed = torch.empty(rows, heads, parts, width, dtype=torch.float32, device=query.device)
    weight = torch.empty(rows, heads, parts, dtype=torch.float32, device=query.device)
    output = torch.empty(rows, heads, width, dtype=query.dtype, device=query.device)
    padded = max(triton.next_power_of_2(width), 16)
    _attend_part[(rows, kv_heads, parts)](
        query,
        keys,
        values,
        read,
        lengths,
        mixed,
        weight,
        width**-0.5 if scale is None else scale,
        longest,
        kv_heads,
        group,
        width,
        parts,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        PART=PART,
        BLOCK=BLOCK,
        GROUP=max(triton.next_power_of_2(group), 16),
        WIDTH=padded,
        # The interpreter multiplies the bits of bfloat16 as integers.
        EXACT=query.dtype == torch.bfloat16 and not isinstance(_attend_part, triton.JITFunction),
    )
    _join_parts[(rows, heads)](mixed, weight, lengths, output, heads, width, parts, PART=PART, WIDTH=padded)
    return output
