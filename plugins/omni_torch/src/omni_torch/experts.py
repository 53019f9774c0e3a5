"""A sparse mixture of experts as two operations: routing rows to experts, and computing the experts' weighted sum.

References in PyTorch, as in :mod:`omni_torch.operations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from omni_torch.kernels import operation


def _logits(rows: int, experts: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return rows of a uniform grid in random order: no two logits of a row are equal, in any dtype, up to 512 experts."""
    noise = torch.rand(rows, experts, generator=generator, device=generator.device)
    return ((noise.argsort(-1) - experts // 2) * (8 / experts)).to(dtype)


def _routing_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    cases = [(1, 128, 8, True), (3, 6, 2, False), (17, 128, 6, True), (8192, 128, 8, True)]
    return [(_logits(rows, experts, dtype, generator), k, normalize) for rows, experts, k, normalize in cases]


@operation("route_experts", examples=_routing_examples)
def route_experts(logits: torch.Tensor, top_k: int, normalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``top_k`` experts of each row with the largest logits, largest first, and their shares by a softmax
    over all experts.

    The choice between experts with equal logits is ``torch.topk``'s, which leaves it open. A kernel may define it.

    Args:
        logits: ``[n, experts]``. normalize: scale each row's ``top_k`` weights to a sum of 1.

    Returns:
        Weights ``[n, top_k]`` in the logits' dtype, computed in float32, and the experts' numbers ``[n, top_k]``, int64.
    """
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    weights, chosen = logits.softmax(-1, dtype=exact).topk(top_k, dim=-1)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(logits.dtype), chosen


def _mixture_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: few and many rows, odd sizes, and the dimensions of Qwen3-Omni's talker."""
    cases = [([1, 40], 6, 2, 64, 48), ([3], 5, 3, 72, 40), ([17], 128, 8, 64, 16), ([1, 32, 512], 128, 6, 1024, 384)]
    device = generator.device

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)

    examples: list[tuple[Any, ...]] = []
    for batches, experts, top_k, hidden, inner in cases:
        gate_up, down = normal(experts, 2 * inner, hidden) / hidden**0.5, normal(experts, hidden, inner) / inner**0.5
        for rows in batches:
            weights, chosen = route_experts.reference(_logits(rows, experts, dtype, generator), top_k, True)
            examples.append((normal(rows, hidden), weights, chosen, gate_up, down))
    return examples


@operation("experts", examples=_mixture_examples)
def experts(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Compute each row's experts (``down(silu(gate(x)) * up(x))``), and the weighted sum of their outputs, in a fixed
    order.

    Args:
        x: ``[n, hidden]``. weights, chosen: ``[n, top_k]``, from :func:`route_experts`.
        gate_up: ``[experts, 2 * inner, hidden]``, the gates' rows before the ups'. down: ``[experts, hidden, inner]``.

    Returns:
        ``[n, hidden]``.
    """
    if _groupable(x, down):
        return grouped(x, weights, chosen, gate_up, down)

    def expert(number: int, rows: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(rows, gate_up[number]).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, down[number])

    return one_by_one(x, weights, chosen, expert)


def _groupable(x: torch.Tensor, down: torch.Tensor) -> bool:
    """Return True if PyTorch's grouped product supports these: on a GPU, not in float64, rows aligned to 16 bytes."""
    if not x.is_cuda or x.dtype == torch.float64 or not hasattr(F, "grouped_mm"):
        return False
    return all(size * x.element_size() % 16 == 0 for size in down.shape[1:])


def one_by_one(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, expert: Callable[[int, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Compute :func:`experts` one chosen expert after another; only their weights are read. The host waits for
    ``chosen``.

    Args:
        expert: computes one, ``(number, [rows, hidden]) -> [rows, hidden]``.
    """
    if len(x) == 1:
        parts = torch.cat([expert(number, x) for number in chosen[0].tolist()])
        return weights @ parts
    pairs = sorted((number, row) for row, numbers in enumerate(chosen.tolist()) for number in numbers)
    counts = Counter(number for number, _ in pairs)
    order = torch.tensor([row for _, row in pairs], device=x.device)
    groups = x.index_select(0, order).split_with_sizes(list(counts.values()))
    outputs = [expert(number, rows) for number, rows in zip(counts, groups, strict=True)]
    share = weights.flatten().index_select(0, chosen.flatten().argsort(stable=True)).unsqueeze(-1)
    return torch.zeros_like(x).index_add_(0, order, torch.cat(outputs).mul_(share))


def grouped(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Compute :func:`experts` in two grouped products, which in bfloat16 do not synchronise with the host."""
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.zeros(len(gate_up), dtype=torch.int32, device=x.device)
    counts.index_add_(0, flat, torch.ones_like(order, dtype=torch.int32))
    ends = counts.cumsum(0, dtype=torch.int32)
    rows = x[order // chosen.shape[1]]
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    parts = torch.empty(len(order), x.shape[1], dtype=x.dtype, device=x.device)
    parts[order] = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
    return (parts.view(len(x), -1, x.shape[1]) * weights.unsqueeze(-1)).sum(1)
