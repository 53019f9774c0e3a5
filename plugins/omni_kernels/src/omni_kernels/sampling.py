"""Samples tokens without sorting the vocabulary: thresholds are found by bisection over integer keys.

One program handles a row. First, many programs find the largest logit of every span of ids: these bound a threshold
from below (the k-th largest of them is at most the k-th largest logit), and only the spans that reach the bound are
read from then on. Weights are multiples of 2^-40 of the largest, so their sums are exact and independent of order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SPAN = 64
"""The number of ids in a span."""

TILE = 8192
"""The most ids that a program reads at once."""

_LOWEST = tl.constexpr(-2139095041)
"""The key of minus infinity."""

_UNIT = tl.constexpr(2.0**40)
"""The weight of the best id. The sum of eight million of them fits 63 bits."""


@triton.jit
def _largest_of_spans(logits, largest, vocab, spans, stride, SPAN: tl.constexpr, GROUP: tl.constexpr):
    """Compute the largest logit of each of ``GROUP`` spans of a row; infinity if one is NaN."""
    row = tl.program_id(0).to(tl.int64)
    span = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    ids = span[:, None] * SPAN + tl.arange(0, SPAN)[None, :]
    value = tl.load(logits + row * stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)
    tl.store(largest + row * spans + span, tl.max(value, axis=1), mask=span < spans)


@triton.jit
def _key(value):
    """Map floats to integers of the same order. Both zeros have the same key."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _list(listed, span, chosen):
    """Write the numbers of the ``chosen`` spans, in order; return how many there are."""
    tl.debug_barrier()
    place = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(listed + place, span, mask=chosen)
    tl.debug_barrier()
    return tl.sum(chosen.to(tl.int32), axis=0)


@triton.jit
def _read(logits, listed, count, begin, vocab, heat, SPAN: tl.constexpr, TILE: tl.constexpr):
    """Return the next ids of the listed spans and their logits over the temperature; after the last, ``vocab`` and
    minus infinity.
    """
    index = begin + tl.arange(0, TILE)
    span = tl.load(listed + index // SPAN, mask=index < count * SPAN, other=0)
    ids = span * SPAN + index % SPAN
    inside = (index < count * SPAN) & (ids < vocab)
    value = tl.load(logits + ids, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.where(inside, ids, vocab), tl.div_rn(value, heat)


@triton.jit
def _weight(scaled, highest, floor):
    """Return each id's weight in units, 0 for those below ``floor`` times the largest."""
    weight = tl.exp(scaled - highest)
    return tl.where(weight < floor, 0.0, weight * _UNIT).to(tl.int64)


@triton.jit
def _amount(
    logits,
    listed,
    count,
    vocab,
    heat,
    highest,
    floor,
    least,
    WEIGHED: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
):
    """Count the ids of the listed spans whose key is at least ``least``, or sum their weights."""
    amounts = tl.zeros([TILE], tl.int64)
    for begin in range(0, count * SPAN, TILE):
        _, scaled = _read(logits, listed, count, begin, vocab, heat, SPAN, TILE)
        there = _key(scaled) >= least.to(tl.int32)
        if WEIGHED:
            amounts += tl.where(there, _weight(scaled, highest, floor), 0)
        else:
            amounts += there.to(tl.int64)
    return tl.sum(amounts, axis=0)


@triton.jit
def _threshold(
    logits,
    listed,
    count,
    vocab,
    heat,
    highest,
    goal,
    low,
    high,
    WEIGHED: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
):
    """Return the largest key with ``goal`` at or above it, or a lower one with the same ids at or above it; from low to
    high.
    """
    while low < high:
        middle = (low + high + 1) >> 1
        amount = _amount(logits, listed, count, vocab, heat, highest, 0.0, middle, WEIGHED, SPAN, TILE)
        low = tl.where(amount >= goal, middle, low)
        high = tl.where(amount == goal, middle, tl.where(amount > goal, high, middle - 1))
    return low


@triton.jit
def _bound(keys, amounts, goal, low, high):
    """Return the largest key with ``goal`` at or above it; ``low`` if there is none. All keys are in registers."""
    while low < high:
        middle = (low + high + 1) >> 1
        enough = tl.sum(tl.where(keys >= middle.to(tl.int32), amounts, 0), axis=0) >= goal
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit
def _choose(
    logits,
    largest,
    listed,
    temperature,
    top_k,
    top_p,
    min_p,
    uniforms,
    chosen,
    vocab,
    spans,
    stride,
    SPAN: tl.constexpr,
    SPANS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Choose one row's id. Temperature 0 is top-1 at the uniform number 0: the first of the best."""
    row = tl.program_id(0).to(tl.int64)
    logits, listed = logits + row * stride, listed + row * spans
    span = tl.arange(0, SPANS)
    there = span < spans
    tops = tl.load(largest + row * spans + span, mask=there, other=float("-inf"))
    highest = tl.max(tops, axis=0)
    if (highest == float("-inf")) | (highest == float("inf")):
        tl.store(chosen + row, -1)
        return
    heat = tl.load(temperature + row).to(tl.float32)
    drawing = heat > 0.0
    heat = tl.where(drawing, tl.maximum(heat, 1e-5), 1.0)
    k = tl.where(drawing, tl.load(top_k + row).to(tl.int64), 1)
    p = tl.where(drawing, tl.load(top_p + row).to(tl.float32), 1.0)
    floor = tl.where(drawing, tl.load(min_p + row).to(tl.float32), 0.0)
    uniform = tl.where(drawing, tl.load(uniforms + row), 0.0)
    tops, highest = tl.div_rn(tops, heat), tl.div_rn(highest, heat)
    keys, peak = _key(tops), _key(highest).to(tl.int64)
    least = tl.full([], _LOWEST, tl.int64)
    if (k > 0) & (k < vocab):
        least = _bound(keys, there.to(tl.int64), k, least, peak)
        count = _list(listed, span, there & (keys >= least.to(tl.int32)))
        least = _threshold(logits, listed, count, vocab, heat, highest, k, least, peak, False, SPAN, TILE)
    if p < 1.0:
        count = _list(listed, span, there & (keys >= least.to(tl.int32)))
        mass = _amount(logits, listed, count, vocab, heat, highest, 0.0, least, True, SPAN, TILE)
        goal = (mass.to(tl.float64) * p).to(tl.int64)
        least = _bound(keys, _weight(tops, highest, 0.0), goal, least, peak)
        count = _list(listed, span, there & (keys >= least.to(tl.int32)))
        least = _threshold(logits, listed, count, vocab, heat, highest, goal, least, peak, True, SPAN, TILE)
    count = _list(listed, span, there & (keys >= least.to(tl.int32)))
    total = _amount(logits, listed, count, vocab, heat, highest, floor, least, True, SPAN, TILE)
    target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    before = tl.zeros([], tl.int64)
    found = vocab
    for begin in range(0, count * SPAN, TILE):
        ids, scaled = _read(logits, listed, count, begin, vocab, heat, SPAN, TILE)
        weight = tl.where(_key(scaled) >= least.to(tl.int32), _weight(scaled, highest, floor), 0)
        within = tl.sum(weight, axis=0)
        if (before <= target) & (target < before + within):
            found = tl.min(tl.where(before + tl.cumsum(weight, axis=0) > target, ids, vocab), axis=0)
        before += within
    tl.store(chosen + row, found.to(tl.int64))


def tile(vocab: int) -> tuple[int, int]:
    """Return the number of ids that the program of a row reads at once, and its warps."""
    ids = min(max(triton.next_power_of_2(vocab), SPAN), TILE)
    return ids, min(max(ids // 256, 1), 32)


def sample_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """See :func:`omni_torch.sampling.sample.sample_tokens`.

    Logits are divided, and compared, in float32; ids that tie there with the last one that top-k or top-p keeps are
    kept too.
    """
    rows, vocab = logits.shape
    spans = triton.cdiv(vocab, SPAN)
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    largest = torch.empty(rows, spans, dtype=torch.float32, device=logits.device)
    listed = torch.empty(rows, spans, dtype=torch.int32, device=logits.device)
    chosen = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return chosen
    sizes = vocab, spans, logits.stride(0)
    _largest_of_spans[(rows, triton.cdiv(spans, SPAN))](logits, largest, *sizes, SPAN=SPAN, GROUP=SPAN)
    at_once, warps = tile(vocab)
    params = (each.contiguous() for each in (temperature, top_k, top_p, min_p, uniforms))
    _choose[(rows,)](
        logits,
        largest,
        listed,
        *params,
        chosen,
        *sizes,
        SPAN=SPAN,
        SPANS=triton.next_power_of_2(spans),
        TILE=at_once,
        num_warps=warps,
    )
    return chosen
