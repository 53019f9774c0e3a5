"""A decode step of a whole decoder as one operation: all layers and the last norm, one token for each request.

The time of a step of a few rows is the number of its calls, not its arithmetic (docs/performance.md). The operation takes the layers as
data, so that a kernel can compute them in one call; a model builds a :class:`DecoderStack` of its weights, which are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define

from omni_torch.operations.experts import one_by_one, route_experts
from omni_torch.operations.few_rows import Matrix, few_rows_linear
from omni_torch.operations.kernels import operation
from omni_torch.operations.shared import EPS, rotary, rotary_pairs

MOST_ROWS = 32
"""The most rows of a step that is worth one call; products of more rows have better kernels."""

POISON = 8192.0
"""In the examples, the value of cache slots that belong to no position."""


@define(eq=False)
class MixtureWeights:
    """A mixture of experts: ``router`` ``[experts, hidden]``, each expert's gates above its ups and its down projection; the shared
    expert's gate ``[1, hidden]``, if the block has a shared expert.
    """

    router: Matrix
    experts: list[tuple[Matrix, Matrix]]
    top_k: int
    normalize: bool
    shared_gate: Matrix | None = None


@define(eq=False)
class LayerWeights:
    """A decoder layer with rotary positions, gated (silu) feed-forward, and with or without norms of queries and keys.

    Attributes:
        input_norm, post_norm: ``[hidden]``.
        head_norms: ``[heads + kv_heads, head_dim]``; ``None``: there are none.
        qkv: ``[(heads + 2 * kv_heads) * head_dim, hidden]``.
        output: ``[hidden, heads * head_dim]``.
        dense: gates above ups, ``[2 * units, hidden]``, and ``[hidden, units]``, of the feed-forward block or of the shared expert.
        mixture: the experts of a sparse layer.
    """

    input_norm: torch.Tensor
    post_norm: torch.Tensor
    head_norms: torch.Tensor | None
    qkv: Matrix
    output: Matrix
    dense: tuple[Matrix, Matrix] | None = None
    mixture: MixtureWeights | None = None


@define(eq=False)
class DecoderStack:
    """A decoder's layers and its last norm, ``[hidden]``. ``pairs``: positions rotate neighbouring values of a head,
    not its halves.
    """

    layers: list[LayerWeights]
    norm: torch.Tensor
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = EPS
    pairs: bool = False


def _examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: dense and sparse layers, a shared expert, one row and several, widths that are multiples of nothing."""
    cases: list[dict[str, Any]] = [
        {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "lengths": [5]},
        {"hidden": 50, "heads": 3, "kv_heads": 1, "head_dim": 14, "lengths": [1, 40, 7], "experts": 5, "bias": True},
        {"hidden": 128, "heads": 8, "kv_heads": 4, "head_dim": 64, "lengths": [33] * 5, "experts": 8, "shared": True},
        {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "lengths": [9, 2], "bias": True, "head_norms": False},
        {"hidden": 50, "heads": 3, "kv_heads": 1, "head_dim": 14, "lengths": [9, 2], "pairs": True},
        {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "lengths": [5], "head_norms": False, "pairs": True},
    ]
    return [example(dtype, generator, **case) for case in cases]


def example(
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    lengths: list[int],
    counts: list[int] | None = None,
    experts: int = 0,
    shared: bool = False,
    bias: bool = False,
    head_norms: bool = True,
    pairs: bool = False,
    layers: int = 2,
) -> tuple[Any, ...]:
    """Return random arguments of :func:`decode_layers`, or of :func:`prefill_layers`: of each request its last ``counts`` of ``lengths``
    positions. Slots that it does not read hold :data:`POISON`.
    """
    device, size = generator.device, 4

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def matrix(out: int, inner: int, biased: bool = False, scale: float = 1.0) -> Matrix:
        return Matrix(normal(out, inner) * (scale * inner**-0.5), None, normal(out) if biased else None)

    def layer() -> LayerWeights:
        units = 2 * hidden // 3
        dense = (matrix(2 * units, hidden), matrix(hidden, units)) if shared or not experts else None
        mixture = None
        if experts:
            # Far apart, so that rounding does not exchange the experts of a row.
            router, gate = matrix(experts, hidden, scale=20), matrix(1, hidden) if shared else None
            each = [(matrix(2 * units + 2, hidden), matrix(hidden, units + 1)) for _ in range(experts)]
            mixture = MixtureWeights(router, each, 2, True, gate)
        attention = matrix((heads + 2 * kv_heads) * head_dim, hidden, bias), matrix(hidden, heads * head_dim, bias)
        norms = normal(hidden) * 0.1 + 1, normal(hidden) * 0.1 + 1
        of_heads = normal(heads + kv_heads, head_dim) * 0.1 + 1 if head_norms else None
        return LayerWeights(*norms, of_heads, *attention, dense, mixture)

    made = [layer() for _ in range(layers)]
    stack = DecoderStack(made, normal(hidden) * 0.1 + 1, heads, kv_heads, head_dim, pairs=pairs)
    computed = counts or [1] * len(lengths)
    used = [-(-length // size) for length in lengths]
    order = torch.randperm(sum(used) + 2, generator=generator, device=device).int()
    pages = torch.full((len(lengths), max(used)), 1 << 30, dtype=torch.int32, device=device)
    keys, values = (torch.full((layers, len(order) * size, kv_heads, head_dim), POISON).to(dtype) for _ in range(2))
    for row, (count, length) in enumerate(zip(used, lengths, strict=True)):
        pages[row, :count] = order[sum(used[:row]) :][:count]
        for position in range(length - computed[row]):
            slot = int(pages[row, position // size]) * size + position % size
            keys[:, slot], values[:, slot] = normal(layers, kv_heads, head_dim), normal(layers, kv_heads, head_dim)
    ends = [
        end for length, count in zip(lengths, computed, strict=True) for end in range(length - count + 1, length + 1)
    ]
    pages = pages.repeat_interleave(torch.tensor(computed, device=device), 0)
    angles = torch.randn((len(ends), 1, head_dim // 2), generator=generator, device=device).repeat(1, 1, 2)
    where = pages, torch.tensor(ends, dtype=torch.int32, device=device), size, keys.to(device), values.to(device)
    # The layers add less than they are given, as in trained decoders.
    return (normal(len(ends), hidden) * 4, angles.cos().to(dtype), angles.sin().to(dtype), *where, stack, 1)


@operation("decode_layers", examples=_examples, writes=("keys", "values"))
def decode_layers(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
    keys: Sequence[torch.Tensor] | torch.Tensor,
    values: Sequence[torch.Tensor] | torch.Tensor,
    stack: DecoderStack,
    capture: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Compute one token of each request through all layers and the last norm, and write its keys and values to the cache.

    Args:
        x: ``[n, hidden]``, embeddings.
        cos, sin: ``[n, 1, head_dim]`` of the same dtype; both halves are equal.
        pages: ``[n, width]`` int32, the cache blocks of each request; entries beyond its length are not read.
        lengths: ``[n]`` int32, positions of each request, the token's own included, which is the last.
        block_size: positions of a block.
        keys, values: of each layer, ``[slots, kv_heads, head_dim]``, of the dtype of ``x``.
        capture: number of a layer whose input is wanted too.

    Returns:
        ``[n, hidden]``; and, with ``capture``, the layer's input, ``[n, hidden]``.
    """
    slots = [_slots(row, int(length), block_size) for row, length in zip(pages, lengths, strict=True)]
    newest = torch.stack([each[-1] for each in slots])
    heads, kv_heads, width = stack.heads, stack.kv_heads, stack.head_dim
    captured = x
    for number, layer in enumerate(stack.layers):
        if number == capture:
            captured = x
        projected = _product(_norm(x, layer.input_norm, stack.eps), layer.qkv).view(len(x), -1, width)
        turned, value = projected.split_with_sizes([heads + kv_heads, kv_heads], 1)
        if layer.head_norms is not None:
            turned = F.rms_norm(turned, turned.shape[-1:], eps=stack.eps) * layer.head_norms.to(x.dtype)
        turned = (rotary_pairs if stack.pairs else rotary)(turned, cos, sin)
        query, key = turned.split_with_sizes([heads, kv_heads], 1)
        keys[number][newest], values[number][newest] = key, value
        mixed = [
            _attend(each, keys[number][read], values[number][read]) for each, read in zip(query, slots, strict=True)
        ]
        x = x + _product(torch.stack(mixed).reshape(len(x), -1), layer.output)
        x = x + _feed_forward(_norm(x, layer.post_norm, stack.eps), layer)
    hidden = _norm(x, stack.norm, stack.eps)
    return (hidden,) if capture is None else (hidden, captured)


def _prompt_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: a whole prompt, runs after cached positions, single positions among them; widths as in :func:`_examples`."""
    cases: list[dict[str, Any]] = [
        {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "lengths": [37], "counts": [37]},
        {"hidden": 50, "heads": 3, "kv_heads": 1, "head_dim": 14, "lengths": [9, 40, 7], "counts": [2, 33, 1], "experts": 5, "bias": True},
        {"hidden": 128, "heads": 8, "kv_heads": 4, "head_dim": 64, "lengths": [70, 33], "counts": [54, 33], "experts": 8, "shared": True},
        {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "lengths": [40, 9], "counts": [35, 1], "bias": True, "head_norms": False},
        {"hidden": 50, "heads": 3, "kv_heads": 1, "head_dim": 14, "lengths": [40, 9], "counts": [35, 1], "pairs": True},
    ]  # fmt: skip
    return [example(dtype, generator, **case) for case in cases]


@operation("prefill_layers", examples=_prompt_examples, writes=("keys", "values"))
def prefill_layers(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
    keys: Sequence[torch.Tensor] | torch.Tensor,
    values: Sequence[torch.Tensor] | torch.Tensor,
    stack: DecoderStack,
    capture: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Compute runs of adjacent positions of requests as :func:`decode_layers` computes single ones.

    Rows of one request are adjacent and in order. They have equal rows of ``pages``; the ``lengths`` of each are its own position plus
    one. Each attends to the positions up to its own, those of earlier rows of the step among them. A kernel may
    keep inputs in bfloat16 that :attr:`omni_torch.operations.few_rows.Matrix.int8_inputs` rounds to 8 bits, and round values of groups
    times their scales to bfloat16.
    """
    return decode_layers.reference(x, cos, sin, pages, lengths, block_size, keys, values, stack, capture)


def _slots(pages: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    position = torch.arange(length, device=pages.device)
    return pages[position // block_size].long() * block_size + position % block_size


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def _product(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    bias = None if matrix.bias is None else matrix.bias.to(x.dtype)
    if matrix.scales is None:
        return F.linear(x, matrix.weight.to(x.dtype), bias)
    return few_rows_linear.reference(x, matrix.weight, matrix.scales, bias, matrix.int8_inputs)


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``[heads, head_dim]`` for the queries of one row and its keys and values, ``[positions, kv_heads, head_dim]``."""
    heads, width = query.shape
    grouped = query.view(keys.shape[1], -1, width)
    return F.scaled_dot_product_attention(grouped, keys.transpose(0, 1), values.transpose(0, 1)).reshape(heads, width)


def _gated(x: torch.Tensor, gate_up: Matrix, down: Matrix) -> torch.Tensor:
    gate, up = _product(x, gate_up).chunk(2, dim=-1)
    return _product(F.silu(gate) * up, down)


def _feed_forward(x: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
    mixture = layer.mixture
    if mixture is None:
        assert layer.dense is not None
        return _gated(x, *layer.dense)
    weights, chosen = route_experts.reference(_product(x, mixture.router), mixture.top_k, mixture.normalize)
    mixed = one_by_one(x, weights, chosen, lambda number, rows: _gated(rows, *mixture.experts[number]))
    if mixture.shared_gate is not None:
        assert layer.dense is not None
        mixed = mixed + _product(x, mixture.shared_gate).sigmoid() * _gated(x, *layer.dense)
    return mixed
