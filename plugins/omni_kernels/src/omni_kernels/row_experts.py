"""A mixture of experts of very few rows: each reads its own experts, which need no grouping."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from attrs import frozen

from omni_kernels.overlap import AFTER_LOADS, allow_next, launched, wait_for_previous
from omni_kernels.routing import ranked, shared_out
from omni_kernels.row_products import GATED, Tile, gated_columns, row_product
from omni_torch.api import LayerWeights, MixtureWeights

DOWN = Tile(16, 128, 4, AFTER_LOADS)
"""Of experts' down projections."""


@triton.jit
def _single_gate_up(
    x,
    norm,
    matrix,
    scales,
    logits,
    shares,
    chosen,
    gated,
    eps,
    experts,
    top_k,
    hidden,
    inner,
    x_row,
    matrix_expert,
    matrix_row,
    NORMALIZE: tl.constexpr,
    SCALED: tl.constexpr,
    EXPERTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Compute columns of ``silu(gate) * up`` of one row and one of its experts. Every program finds the expert itself, which is
    faster than a kernel that does; those of the first columns write it and its share.
    """
    pair = tl.program_id(1)
    row, place = (pair // top_k).to(tl.int64), pair % top_k
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    wait_for_previous(OVERLAP)
    logit, rank = ranked(logits + row * experts, experts, 1, EXPERTS)
    number = tl.arange(0, EXPERTS)
    expert = tl.sum(tl.where((rank == place) & (number < experts), number, 0), axis=0)
    gates = matrix + expert.to(tl.int64) * matrix_expert + column[:, None] * matrix_row
    theirs = scales + expert * 2 * inner
    read = x + row * x_row
    value = gated_columns(read, norm, gates, theirs, inner, column, matrix_row, eps, hidden, SCALED, COLUMNS, DEPTH)
    allow_next(OVERLAP)
    tl.store(gated + pair.to(tl.int64) * inner + column, value.to(gated.dtype.element_ty), mask=column < inner)
    if tl.program_id(0) == 0:
        share = shared_out(logit, rank, top_k, NORMALIZE)
        tl.store(shares + pair, tl.sum(tl.where(rank == place, share, 0.0), axis=0))
        tl.store(chosen + pair, expert)


@triton.jit
def _single_down(
    gated,
    matrix,
    scales,
    shares,
    chosen,
    residual,
    shared,
    shared_logit,
    parts,
    arrived,
    output,
    top_k,
    hidden,
    inner,
    matrix_expert,
    matrix_row,
    SCALED: tl.constexpr,
    SHARED: tl.constexpr,
    TOP_K: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Compute columns of one row and one of its experts. The program that ends last adds the residual and all experts, in the order
    of its choices.
    """
    row, each = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    wait_for_previous(OVERLAP)
    inside = column < hidden
    pair = row * top_k + each
    expert = tl.load(chosen + pair)
    weights = matrix + expert.to(tl.int64) * matrix_expert + column[:, None] * matrix_row
    total = tl.zeros([COLUMNS, DEPTH], tl.float32)
    for begin in range(0, inner, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        filled = depth < inner
        b = tl.load(weights + depth[None, :], mask=inside[:, None] & filled[None, :], other=0.0)
        a = tl.load(gated + pair * inner + depth, mask=filled, other=0.0).to(tl.float32)
        total += b.to(tl.float32) * a[None, :]
    allow_next(OVERLAP)
    part = tl.sum(total, axis=1) * tl.load(shares + pair)
    if SCALED:
        part *= tl.load(scales + expert * hidden + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(parts + pair * hidden + column, part, mask=inside)
    tl.debug_barrier()
    counter = arrived + row * tl.num_programs(0) + tl.program_id(0)
    if tl.atomic_add(counter, 1, sem="acq_rel") == top_k - 1:
        tl.store(counter, 0)
        choice = tl.arange(0, TOP_K)
        read = parts + (row * top_k + choice[:, None]) * hidden + column[None, :]
        sums = tl.load(read, mask=(choice < top_k)[:, None] & inside[None, :], other=0.0, cache_modifier=".cg")
        result = tl.sum(sums, axis=0)
        place = row * hidden + column
        if SHARED:
            gate = tl.load(shared_logit + row)
            result += tl.load(shared + place, mask=inside, other=0.0).to(tl.float32) / (1.0 + tl.exp(-gate))
        result += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(output + place, result.to(output.dtype.element_ty), mask=inside)


@frozen(eq=False)
class _Stacked:
    """The experts of a layer as tensors ``[experts, 2 * units, hidden]`` and ``[experts, hidden, units]``; of weights of 8 bits with their
    scales, ``[experts, 2 * units]`` and ``[experts, hidden]``.
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_scales: torch.Tensor | None
    down_scales: torch.Tensor | None


_stacked: WeakKeyDictionary[MixtureWeights, _Stacked] = WeakKeyDictionary()


def stacked_experts(mixture: MixtureWeights) -> _Stacked:
    """Return a layer's experts as tensors: views where they are slices of one, else copies, made once."""
    found = _stacked.get(mixture)
    if found is None:
        weights = (_as_one([pair[each].weight for pair in mixture.experts]) for each in (0, 1))
        scales = (_scales_as_one([pair[each].scales for pair in mixture.experts]) for each in (0, 1))
        found = _stacked[mixture] = _Stacked(*weights, *scales)
    return found


def _scales_as_one(scales: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    given = [each for each in scales if each is not None]
    return _as_one(given).contiguous() if given else None


def _as_one(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    first = matrices[0]
    step = matrices[1].storage_offset() - first.storage_offset() if len(matrices) > 1 else first.numel()
    base = first.untyped_storage().data_ptr()
    adjacent = all(
        each.untyped_storage().data_ptr() == base
        and each.storage_offset() == first.storage_offset() + number * step
        and each.stride() == first.stride()
        for number, each in enumerate(matrices)
    )
    if not adjacent or step <= 0:
        return torch.stack(list(matrices))
    return first.as_strided((len(matrices), *first.shape), (step, *first.stride()))


def single_experts(
    x: torch.Tensor,
    layer: LayerWeights,
    mixture: MixtureWeights,
    shared: torch.Tensor | None,
    eps: float,
    arrived: torch.Tensor,
) -> torch.Tensor:
    """Return ``x`` plus its mixture of experts, ``[n, hidden]`` in float32. Every row reads its own experts."""
    (rows, hidden), norm, top_k, stacked = x.shape, layer.post_norm, mixture.top_k, stacked_experts(mixture)
    experts, _, inner = stacked.down.shape
    logits = row_product(x, mixture.router, norm, eps=eps)
    gate = None if mixture.shared_gate is None else row_product(x, mixture.shared_gate, norm, eps=eps)
    shares = torch.empty(rows, top_k, dtype=torch.float32, device=x.device)
    chosen = torch.empty(rows, top_k, dtype=torch.int32, device=x.device)
    gated = torch.empty(rows * top_k, inner, dtype=norm.dtype, device=x.device)
    _single_gate_up[(triton.cdiv(inner, GATED.columns), rows * top_k)](
        x,
        norm,
        stacked.gate_up,
        x if stacked.gate_up_scales is None else stacked.gate_up_scales,
        logits,
        shares,
        chosen,
        gated,
        eps,
        experts,
        top_k,
        hidden,
        inner,
        x.stride(0),
        stacked.gate_up.stride(0),
        stacked.gate_up.stride(1),
        NORMALIZE=mixture.normalize,
        SCALED=stacked.gate_up_scales is not None,
        EXPERTS=triton.next_power_of_2(experts),
        COLUMNS=GATED.columns,
        DEPTH=GATED.depth,
        **launched(x.device, GATED.overlap, GATED.warps),
    )
    output = torch.empty_like(x)
    parts = torch.empty(rows * top_k, hidden, dtype=torch.float32, device=x.device)
    _single_down[(triton.cdiv(hidden, DOWN.columns), top_k, rows)](
        gated,
        stacked.down,
        x if stacked.down_scales is None else stacked.down_scales,
        shares,
        chosen,
        x,
        x if shared is None else shared,
        x if gate is None else gate,
        parts,
        arrived,
        output,
        top_k,
        hidden,
        inner,
        stacked.down.stride(0),
        stacked.down.stride(1),
        SCALED=stacked.down_scales is not None,
        SHARED=gate is not None,
        TOP_K=triton.next_power_of_2(top_k),
        COLUMNS=DOWN.columns,
        DEPTH=DOWN.depth,
        **launched(x.device, DOWN.overlap, DOWN.warps),
    )
    return output
