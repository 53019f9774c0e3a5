"""A sparse mixture of experts as two operations: routing rows to experts, and computing the experts' weighted sum.

References in PyTorch, as in :mod:`omni_torch.operations.shared`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from omni_torch.operations.few_rows import widened
from omni_torch.operations.kernels import operation


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
        logits: ``[n, experts]``.
        normalize: scale each row's ``top_k`` weights to a sum of 1.

    Returns:
        Weights ``[n, top_k]`` in the logits' dtype, computed in float32, and the experts' numbers ``[n, top_k]``, int64.
    """
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    weights, chosen = logits.softmax(-1, dtype=exact).topk(top_k, dim=-1)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(logits.dtype), chosen


def _mixture_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: few and many rows, odd sizes, the dimensions of Qwen3-Omni's talker, and the experts of one rank of several."""
    cases = [([1, 40], 6, 2, 64, 48), ([3], 5, 3, 72, 40), ([17], 128, 8, 64, 16), ([1, 32, 512], 128, 6, 1024, 384)]
    ranks = [([1, 2, 40], 6, 2, 3, 3), ([1, 17], 128, 8, 0, 32)]
    device = generator.device

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)

    examples: list[tuple[Any, ...]] = []
    for batches, experts, top_k, hidden, inner in cases:
        gate_up, down = normal(experts, 2 * inner, hidden) / hidden**0.5, normal(experts, hidden, inner) / inner**0.5
        for rows in batches:
            weights, chosen = route_experts.reference(_logits(rows, experts, dtype, generator), top_k, True)
            examples.append((normal(rows, hidden), weights, chosen, gate_up, down))
    for batches, total, top_k, first, held in ranks:
        gate_up, down = normal(held, 2 * 48, 64) / 8, normal(held, 64, 48) / 48**0.5
        for rows in batches:
            weights, chosen = route_experts.reference(_logits(rows, total, dtype, generator), top_k, True)
            examples.append((normal(rows, 64), weights, chosen, gate_up, down, first, total))
    for kind in (torch.int8, torch.float8_e4m3fn):
        narrow = [(normal(*shape) * 30).clamp(-127, 127).to(kind) for shape in ((6, 96, 64), (6, 64, 48))]
        scales = [torch.rand(each.shape[:2], generator=generator, device=device) / 100 for each in narrow]
        for rows in (1, 40):
            weights, chosen = route_experts.reference(_logits(rows, 6, dtype, generator), 2, True)
            examples.append((normal(rows, 64), weights, chosen, *narrow, 0, None, *scales))
    return examples


@operation("experts", examples=_mixture_examples)
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
    """Compute each row's experts (``down(silu(gate(x)) * up(x))``), and the weighted sum of their outputs, in a fixed
    order.

    Args:
        x: ``[n, hidden]``.
        weights, chosen: ``[n, top_k]``, from :func:`route_experts`.
        gate_up: ``[experts, 2 * inner, hidden]``, the gates' rows before the ups'.
        down: ``[experts, hidden, inner]``.
        first, total: the number of the first expert of ``gate_up`` and ``down``, and that of all experts, where these hold only some,
            as those of one rank do. Choices of other experts are not computed, and add nothing. The caller gives both or neither.
        gate_up_scales, down_scales: of weights in int8 or float8_e4m3fn, a scale per output, ``[experts, 2 * inner]`` and
            ``[experts, hidden]``. The caller gives both or neither.

    Returns:
        ``[n, hidden]``.
    """
    if gate_up_scales is None and _groupable(x, gate_up, down):
        return grouped(x, weights, chosen, gate_up, down, first, total)

    def expert(number: int, rows: torch.Tensor) -> torch.Tensor:
        gate, up = _product(rows, gate_up[number], gate_up_scales, number).chunk(2, dim=-1)
        return _product(F.silu(gate) * up, down[number], down_scales, number)

    return one_by_one(x, weights, chosen, expert, None if total is None else range(first, first + len(gate_up)))


def _product(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None, number: int) -> torch.Tensor:
    """Return the product with an expert's weight, of whose scales there are those of all experts."""
    return F.linear(x, weight if scales is None else widened(weight, scales[number], x.dtype))


def _groupable(x: torch.Tensor, *stacks: torch.Tensor) -> bool:
    """Return True if PyTorch's grouped product supports these: on a GPU, not in float64, dense rows aligned to 16 bytes."""
    if not x.is_cuda or x.dtype == torch.float64 or not hasattr(F, "grouped_mm"):
        return False
    sizes = [size for each in stacks for size in (*each.shape[1:], *each.stride()[:-1])]
    return all(each.stride(-1) == 1 for each in stacks) and all(size * x.element_size() % 16 == 0 for size in sizes)


def one_by_one(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    expert: Callable[[int, torch.Tensor], torch.Tensor],
    held: range | None = None,
) -> torch.Tensor:
    """Compute :func:`experts` one chosen expert after another; only their weights are read. The host waits for
    ``chosen``.

    Args:
        expert: computes one, ``(number, [rows, hidden]) -> [rows, hidden]``.
        held: the numbers of the experts that are computed, of which ``expert`` gets the place; ``None``: all.
    """
    if len(x) == 1:
        numbers: list[int] = chosen[0].tolist()
        if held is not None:
            places = [place for place, number in enumerate(numbers) if number in held]
            weights, numbers = weights[:, places], [held.index(numbers[place]) for place in places]
        if not numbers:
            return torch.zeros_like(x)
        return weights @ torch.cat([expert(number, x) for number in numbers])
    pairs = sorted((number, row) for row, numbers in enumerate(chosen.tolist()) for number in numbers)
    share = weights.flatten().index_select(0, chosen.flatten().argsort(stable=True)).unsqueeze(-1)
    if held is not None:  # sorted by number, they follow one another
        begin, end = (bisect_left(pairs, (number, 0)) for number in (held.start, held.stop))
        pairs, share = [(held.index(number), row) for number, row in pairs[begin:end]], share[begin:end]
    if not pairs:
        return torch.zeros_like(x)
    counts = Counter(number for number, _ in pairs)
    order = torch.tensor([row for _, row in pairs], device=x.device)
    groups = x.index_select(0, order).split_with_sizes(list(counts.values()))
    outputs = [expert(number, rows) for number, rows in zip(counts, groups, strict=True)]
    return torch.zeros_like(x).index_add_(0, order, torch.cat(outputs).mul_(share))


def grouped(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    first: int = 0,
    total: int | None = None,
) -> torch.Tensor:
    """Compute :func:`experts` in two grouped products, which in bfloat16 do not synchronise with the host.

    Rows of experts that are not among ``gate_up`` come after the last group, so that no product computes them; what the products leave
    in their place is not read.
    """
    count, others = len(gate_up), None
    if total is not None:
        others = (chosen < first) | (chosen >= first + count)
        chosen = (chosen - first).masked_fill(others, count)
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.zeros(count + 1, dtype=torch.int32, device=x.device)
    counts.index_add_(0, flat, torch.ones_like(order, dtype=torch.int32))
    ends = counts[:count].cumsum(0, dtype=torch.int32)
    rows = x[order // chosen.shape[1]]
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    parts = torch.empty(len(order), x.shape[1], dtype=x.dtype, device=x.device)
    parts[order] = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
    outputs = parts.view(len(x), -1, x.shape[1]) * weights.unsqueeze(-1)
    if others is not None:
        outputs = outputs.masked_fill_(others.unsqueeze(-1), 0)
    return outputs.sum(1)
