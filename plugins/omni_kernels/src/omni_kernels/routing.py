"""Routing of a sparse mixture of experts: each row's softmax over the experts, and its choice of them, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omni_torch import api as operations

MOST_EXPERTS = 512
"""The most experts: one program holds their logits and counts in registers."""


@triton.jit
def _ordered(logit):
    """Map floats to integers of the same order; NaN too, so that experts always have distinct ranks."""
    bits = (logit.to(tl.float32) + 0.0).to(
        tl.int32, bitcast=True
    )  # no negative zero, whose bits differ from those of zero
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def ranked(logits, experts, column_stride, EXPERTS: tl.constexpr):
    """Return a row's logits in float32, and the rank of each expert. Of equal logits, the lower number comes first.

    Ranks are counted, all experts with all: a search for the best, one after another, takes a reduction for each.
    """
    expert = tl.arange(0, EXPERTS)
    logit = tl.load(logits + expert * column_stride, mask=expert < experts, other=float("-inf")).to(tl.float32)
    key = _ordered(logit)
    rank = tl.zeros([EXPERTS], tl.int32)
    for begin in tl.static_range(0, EXPERTS, 32 if EXPERTS > 32 else EXPERTS):
        other = begin + tl.arange(0, 32 if EXPERTS > 32 else EXPERTS)
        theirs = _ordered(tl.load(logits + other * column_stride, mask=other < experts, other=float("-inf")))
        theirs = tl.where(other < experts, theirs, -2147483648)  # below a negative NaN, which is below minus infinity
        first = (theirs[None, :] == key[:, None]) & (other[None, :] < expert[:, None])
        rank += tl.sum(((theirs[None, :] > key[:, None]) | first).to(tl.int32), axis=1)
    return logit, tl.where(expert < experts, rank, EXPERTS)


@triton.jit
def shared_out(logit, rank, top_k, NORMALIZE: tl.constexpr):
    """Return the weight of each expert: its softmax, or its share of the chosen ones' sum."""
    share = tl.exp(logit - tl.max(logit, axis=0))
    counted = tl.where(rank < top_k, share, 0.0) if NORMALIZE else share
    return share / tl.sum(counted, axis=0)


@triton.jit
def _route(
    logits,
    weights,
    chosen,
    experts,
    top_k,
    logits_row,
    logits_column,
    NORMALIZE: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Route one row."""
    row = tl.program_id(0).to(tl.int64)
    logit, rank = ranked(logits + row * logits_row, experts, logits_column, EXPERTS)
    share = shared_out(logit, rank, top_k, NORMALIZE)
    taken = rank < top_k
    place = row * top_k + rank
    tl.store(weights + place, share.to(weights.dtype.element_ty), mask=taken)
    tl.store(chosen + place, tl.arange(0, EXPERTS).to(tl.int64), mask=taken)


def route_experts(logits: torch.Tensor, top_k: int, normalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`omni_torch.operations.experts.route_experts`. Of experts with equal logits, the lower number comes first."""
    count = logits.shape[1]
    if count > MOST_EXPERTS or top_k > count:
        return operations.route_experts.reference(logits, top_k, normalize)
    return route_rows(logits, top_k, normalize)


def route_rows(logits: torch.Tensor, top_k: int, normalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Route with at most :data:`MOST_EXPERTS`."""
    rows, count = logits.shape
    weights = torch.empty(rows, top_k, dtype=logits.dtype, device=logits.device)
    chosen = torch.empty(rows, top_k, dtype=torch.int64, device=logits.device)
    if rows:
        _route[(rows,)](
            logits,
            weights,
            chosen,
            count,
            top_k,
            logits.stride(0),
            logits.stride(1),
            NORMALIZE=normalize,
            EXPERTS=triton.next_power_of_2(count),
            num_warps=4,
        )
    return weights, chosen
