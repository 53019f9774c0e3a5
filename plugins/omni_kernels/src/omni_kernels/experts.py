"""A sparse mixture of experts: two products grouped by expert that gather, gate and weigh while they read and write.

Nothing here reads the choices on the host: grids are as large as any choice could need, and programs without rows
return at once. Nothing is added atomically, so that equal inputs give equal outputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from attrs import frozen

from omni_kernels.routing import MOST_EXPERTS
from omni_torch import api as operations

NARROW = (torch.int8, torch.float8_e4m3fn)
"""The dtypes of weights with a scale per output."""

CHUNK = 1024
"""The number of choices that a grouping program reads at once, and of columns that a summing program writes."""


@triton.jit(do_not_specialize=["pairs", "first"])
def _group(
    chosen,
    order,
    table,
    used,
    pairs,
    first,
    SOME: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Group one expert's pairs of a row and a choice, in order, after those of earlier experts, and list their blocks
    of rows. Every program counts all choices, which is faster than waiting for one program that does. With ``SOME``
    the experts are those from ``first`` on, and choices of others belong to no group.
    """
    expert, last = tl.program_id(0), tl.num_programs(0) - 1
    number = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for begin in range(0, pairs, CHUNK):
        pair = begin + tl.arange(0, CHUNK)
        # Padding counts as an expert number that does not exist.
        each = tl.load(chosen + pair, mask=pair < pairs, other=EXPERTS - 1)
        if SOME:
            each = each - first
            each = tl.where((pair < pairs) & (each >= 0) & (each <= last), each, EXPERTS - 1)
        counts += tl.histogram(each.to(tl.int32), EXPERTS)
    before = number < expert
    place = tl.sum(tl.where(before, counts, 0), axis=0)
    block = tl.sum(tl.where(before, (counts + ROWS - 1) // ROWS, 0), axis=0)
    end = place + tl.sum(tl.where(number == expert, counts, 0), axis=0)
    for begin in range(place, end, ROWS):
        tl.store(table + block * 3, expert)
        tl.store(table + block * 3 + 1, begin)
        tl.store(table + block * 3 + 2, end)
        block += 1
    if expert == last:
        tl.store(used, block)
    if place < end:
        for begin in range(0, pairs, CHUNK):
            pair = begin + tl.arange(0, CHUNK)
            mine = (tl.load(chosen + pair, mask=pair < pairs, other=-1) == expert + first).to(tl.int32)
            tl.store(order + place + tl.cumsum(mine, axis=0) - 1, pair, mask=mine > 0)
            place += tl.sum(mine, axis=0)


@triton.jit
def _gate_up(
    x,
    weight,
    scales,
    order,
    table,
    used,
    gated,
    top_k,
    hidden,
    inner,
    x_row,
    weight_expert,
    weight_row,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Compute a block of one expert's rows, gathered from ``x``: columns of ``silu(gate) * up``, in group order."""
    block = tl.program_id(0)
    if block >= tl.load(used):
        return
    place = tl.load(table + block * 3 + 1) + tl.arange(0, ROWS)
    there = place < tl.load(table + block * 3 + 2)
    row = (tl.load(order + place, mask=there, other=0) // top_k).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < inner
    rows = x + row[:, None] * x_row
    expert = tl.load(table + block * 3)
    gates = weight + expert.to(tl.int64) * weight_expert + column[None, :] * weight_row
    ups = gates + inner * weight_row
    gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, hidden, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        filled = depth < hidden
        needed = filled[:, None] & inside[None, :]
        a = tl.load(rows + depth[None, :], mask=there[:, None] & filled[None, :], other=0.0)
        g = tl.load(gates + depth[:, None], mask=needed, other=0.0)
        u = tl.load(ups + depth[:, None], mask=needed, other=0.0)
        if EXACT:
            a, g, u = a.to(tl.float32), g.to(tl.float32), u.to(tl.float32)
        elif SCALED:
            g, u = g.to(a.dtype), u.to(a.dtype)
        gate = tl.dot(a, g, gate, input_precision="ieee")
        up = tl.dot(a, u, up, input_precision="ieee")
    if SCALED:
        theirs = scales + expert * 2 * inner + column
        gate *= tl.load(theirs, mask=inside, other=0.0).to(tl.float32)[None, :]
        up *= tl.load(theirs + inner, mask=inside, other=0.0).to(tl.float32)[None, :]
    value = gate / (1.0 + tl.exp(-gate)) * up
    target = gated + place[:, None].to(tl.int64) * inner + column[None, :]
    tl.store(target, value.to(gated.dtype.element_ty), mask=there[:, None] & inside[None, :])


@triton.jit
def _down(
    gated,
    weight,
    scales,
    shares,
    order,
    table,
    used,
    parts,
    hidden,
    inner,
    weight_expert,
    weight_row,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Compute a block of one expert's rows: columns of its output, times each row's weight, in order of rows and
    choices.
    """
    block = tl.program_id(0)
    if block >= tl.load(used):
        return
    place = tl.load(table + block * 3 + 1) + tl.arange(0, ROWS)
    there = place < tl.load(table + block * 3 + 2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < hidden
    rows = gated + place[:, None].to(tl.int64) * inner
    expert = tl.load(table + block * 3)
    downs = weight + expert.to(tl.int64) * weight_expert + column[None, :] * weight_row
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, inner, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        filled = depth < inner
        a = tl.load(rows + depth[None, :], mask=there[:, None] & filled[None, :], other=0.0)
        b = tl.load(downs + depth[:, None], mask=filled[:, None] & inside[None, :], other=0.0)
        if EXACT:
            a, b = a.to(tl.float32), b.to(tl.float32)
        elif SCALED:
            b = b.to(a.dtype)
        total = tl.dot(a, b, total, input_precision="ieee")
    if SCALED:
        total *= tl.load(scales + expert * hidden + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    pair = tl.load(order + place, mask=there, other=0)
    share = tl.load(shares + pair, mask=there, other=0.0).to(tl.float32)
    target = parts + pair[:, None].to(tl.int64) * hidden + column[None, :]
    tl.store(target, total * share[:, None], mask=there[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["first", "experts"])
def _sum_parts(parts, output, chosen, top_k, hidden, first, experts, SOME: tl.constexpr, CHUNK: tl.constexpr):
    """Sum columns of one row over its experts' outputs, in the order of its choices. With ``SOME`` only those of the
    ``experts`` from ``first`` on were computed.
    """
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = column < hidden
    total = tl.zeros([CHUNK], tl.float32)
    for each in range(top_k):
        there = inside
        if SOME:
            number = tl.load(chosen + row * top_k + each) - first
            there = column < tl.where((number >= 0) & (number < experts), hidden, 0)
        total += tl.load(parts + (row * top_k + each) * hidden + column, mask=there, other=0.0)
    tl.store(output + row * hidden + column, total.to(output.dtype.element_ty), mask=inside)


@frozen
class Tile:
    """Block sizes of one program of a grouped product: ``rows`` by ``columns``, accumulated ``depth`` products at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tiles(pairs: int, experts: int, dtype: torch.dtype) -> tuple[Tile, Tile]:
    """Return the block sizes of both products. They depend on the average number of rows of an expert: twice that many
    make one block.

    Few rows are bound by weight bandwidth, so programs are many and small. Each fits into 99 KiB of shared memory,
    which every GPU of compute capability 8.0 has.
    """
    wide = dtype == torch.float32
    rows = min(max(triton.next_power_of_2(triton.cdiv(2 * pairs, experts)), 16), 64 if wide else 128)
    if rows == 16:
        depth = 64 if wide else 128
        return Tile(rows, 32, depth, 4, 4), Tile(rows, 64, depth, 4, 4)
    depth, warps = (32 if wide else 64), (8 if rows == 128 else 4)
    return Tile(rows, 64, depth, warps, 3), Tile(rows, 64 if wide else 128, depth, warps, 3)


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    first: int = 0,
    total: int | None = None,
    gate_up_scales: torch.Tensor | None = None,
    down_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """See :func:`omni_torch.operations.experts.experts`. The input of the second product is rounded to the dtype of ``x``, in which
    weights of 8 bits are multiplied; scales are applied to the sums.
    """
    if len(gate_up) > MOST_EXPERTS or not (
        _dense(x, gate_up, down) or _scaled(gate_up, gate_up_scales, down, down_scales)
    ):
        return operations.experts.reference(
            x, weights, chosen, gate_up, down, first, total, gate_up_scales, down_scales
        )
    (rows, top_k), (count, hidden, inner) = chosen.shape, down.shape
    pairs = rows * top_k
    output = torch.empty(rows, hidden, dtype=x.dtype, device=x.device)
    if not rows:
        return output
    x = x if x.stride(1) == 1 else x.contiguous()
    chosen, some = chosen.contiguous(), total is not None
    gate_tile, down_tile = tiles(pairs, total or count, x.dtype)
    groups, most = _grouped(chosen, count, gate_tile.rows, first, some)
    gated = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
    parts = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    # The interpreter multiplies the bits of bfloat16 as integers.
    exact = x.dtype == torch.bfloat16 and not isinstance(_gate_up, triton.JITFunction)
    _gate_up[(most, triton.cdiv(inner, gate_tile.columns))](
        x,
        gate_up,
        x if gate_up_scales is None else gate_up_scales,
        *groups,
        gated,
        top_k,
        hidden,
        inner,
        x.stride(0),
        gate_up.stride(0),
        gate_up.stride(1),
        SCALED=gate_up_scales is not None,
        ROWS=gate_tile.rows,
        COLUMNS=gate_tile.columns,
        DEPTH=gate_tile.depth,
        EXACT=exact,
        num_warps=gate_tile.warps,
        num_stages=gate_tile.stages,
    )
    _down[(most, triton.cdiv(hidden, down_tile.columns))](
        gated,
        down,
        x if down_scales is None else down_scales,
        weights.contiguous(),
        *groups,
        parts,
        hidden,
        inner,
        down.stride(0),
        down.stride(1),
        SCALED=down_scales is not None,
        ROWS=down_tile.rows,
        COLUMNS=down_tile.columns,
        DEPTH=down_tile.depth,
        EXACT=exact,
        num_warps=down_tile.warps,
        num_stages=down_tile.stages,
    )
    _sum_parts[(rows, triton.cdiv(hidden, CHUNK))](
        parts, output, chosen, top_k, hidden, first, count, SOME=some, CHUNK=CHUNK
    )
    return output


def _dense(x: torch.Tensor, *stacks: torch.Tensor) -> bool:
    """Return True if the experts' weights have the dtype of ``x`` and contiguous rows."""
    return all(each.dtype == x.dtype and each.stride(-1) == 1 for each in stacks)


def _scaled(
    gate_up: torch.Tensor, gate_up_scales: torch.Tensor | None, down: torch.Tensor, down_scales: torch.Tensor | None
) -> bool:
    """Return True if the experts' weights have 8 bits, contiguous rows, and scales that are read as they are."""
    if gate_up_scales is None or down_scales is None:
        return False
    rows = all(each.dtype in NARROW and each.stride(-1) == 1 for each in (gate_up, down))
    return rows and gate_up_scales.is_contiguous() and down_scales.is_contiguous()


def _grouped(
    chosen: torch.Tensor, count: int, rows: int, first: int, some: bool
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], int]:
    """Return the choices, sorted by expert and cut into blocks of ``rows``.

    Args:
        first, some: the number of the first of ``count`` experts, and whether there are others, whose choices are left out.

    Returns:
        The pairs (``row * top_k + choice``) in the order of their experts; for each block its expert, its first index in that order
        and the end of its expert's pairs; the number of blocks; and the maximum number of blocks for any choice.
    """
    pairs = chosen.numel()
    most = (pairs + min(count, pairs) * (rows - 1)) // rows
    order, table, used = (
        torch.empty(shape, dtype=torch.int32, device=chosen.device) for shape in ((pairs,), (most, 3), (1,))
    )
    numbers = triton.next_power_of_2(count + 1)
    _group[(count,)](chosen, order, table, used, pairs, first, SOME=some, EXPERTS=numbers, ROWS=rows, CHUNK=CHUNK)
    return (order, table, used), most
