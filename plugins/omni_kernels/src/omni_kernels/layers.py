"""Decode steps of a whole decoder: few launches per layer, each of which reads its weights once and at the rate of the memory.

A decode step of a few rows reads weights and computes little. What keeps a GPU from reading is launches: a kernel takes one to two
microseconds to begin and to end, about as long as it takes to read five megabytes. A layer of one row is therefore seven launches:
norms are computed in the products that follow them, rotary positions and the cache's write in attention, residual sums in the products
before them, and the choice of experts in the product that reads them first. Where the GPU can, a kernel begins while the one before
ends (programmatic dependent launch).

``y = norm(x) W`` is computed as ``(x w) W / rms(x)``: the sum of squares is taken while the row is multiplied. Sums of layers are kept
in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
import triton

from omni_core.api import DecodeCache
from omni_kernels.experts import experts as grouped_experts
from omni_kernels.narrow_products import is_narrow, narrow_product
from omni_kernels.norms import launch as launch_norm
from omni_kernels.part_attention import attend
from omni_kernels.routing import route_rows
from omni_kernels.row_experts import DOWN, single_experts, stacked_experts
from omni_kernels.row_products import row_gated, row_product
from omni_torch.api import DecoderStack, LayerWeights, Matrix
from omni_torch.api import decode_layers as operation

SINGLE_ROWS = 2
"""The most rows whose products are those of one row each. Weights are read once for all of more rows."""

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines."""

Normed = tuple[torch.Tensor, torch.Tensor]
"""Rows, and their norm or what is to be added to them."""


_checked: WeakKeyDictionary[DecoderStack, bool] = WeakKeyDictionary()


def _fits(stack: DecoderStack) -> bool:
    """Return whether all weights are plain or of 8 bits with a scale per output, and no feed-forward block has biases."""
    if stack not in _checked:
        blocks = [layer.dense for layer in stack.layers if layer.dense is not None]
        blocks += [pair for layer in stack.layers if layer.mixture is not None for pair in layer.mixture.experts]
        matrices = [matrix for pair in blocks for matrix in pair]
        without = all(each.bias is None for each in matrices)
        alike = all(len({each.weight.dtype for each in layer}) == 1 for layer in _experts(stack))
        matrices += [matrix for layer in stack.layers for matrix in (layer.qkv, layer.output)]
        _checked[stack] = without and alike and all(is_narrow(each) or _is_plain(each) for each in matrices)
    return _checked[stack]


def _experts(stack: DecoderStack) -> Iterator[list[Matrix]]:
    """Yield what is stacked: the first, then the second matrices of the experts of each layer."""
    for layer in stack.layers:
        if layer.mixture is not None:
            for each in (0, 1):
                yield [pair[each] for pair in layer.mixture.experts]


def _is_plain(matrix: Matrix) -> bool:
    return matrix.scales is None and matrix.weight.stride(-1) == 1


def _single(
    x: torch.Tensor,
    layer: LayerWeights,
    stack: DecoderStack,
    angles: Angles,
    cache: DecodeCache,
    number: int,
    arrived: torch.Tensor,
) -> torch.Tensor:
    """Compute a layer of few rows: each launch reads weights once for each row."""
    projected = row_product(x, layer.qkv, layer.input_norm, eps=stack.eps)
    mixed = attend(projected, layer, stack, *angles, cache, cache.keys[number], cache.values[number])
    x = row_product(mixed, layer.output, residual=x)
    shared = residual = None
    if layer.dense is not None:
        residual = x if layer.mixture is None else None
        shared = row_product(
            row_gated(x, layer.dense[0], layer.post_norm, stack.eps), layer.dense[1], residual=residual
        )
    if layer.mixture is None:
        assert shared is not None
        return shared
    return single_experts(x, layer, layer.mixture, shared, stack.eps, arrived)


def _normed(x: torch.Tensor, norm: torch.Tensor, eps: float, added: torch.Tensor | None = None) -> Normed:
    """Return ``x + added`` in float32, and its root mean square norm in the dtype of the weights."""
    output = torch.empty(x.shape, dtype=norm.dtype, device=x.device)
    total = x if added is None else torch.empty_like(x)
    launch_norm(x, added, norm, None if added is None else total, output, eps)
    return total, output


def _linear(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    return F.linear(x, matrix.weight, matrix.bias) if matrix.scales is None else narrow_product(x, matrix)


def _dense(x: torch.Tensor, gate_up: Matrix, down: Matrix) -> torch.Tensor:
    gate, up = _linear(x, gate_up).chunk(2, dim=-1)
    return _linear(F.silu(gate) * up, down)


def _several(
    x: torch.Tensor,
    added: torch.Tensor | None,
    layer: LayerWeights,
    stack: DecoderStack,
    angles: Angles,
    cache: DecodeCache,
    number: int,
) -> Normed:
    """Compute a layer of several rows, whose products are matrix products: return the sums before it, and what it adds to them."""
    x, normed = _normed(x, layer.input_norm, stack.eps, added)
    projected = _linear(normed, layer.qkv)
    mixed = attend(projected, layer, stack, *angles, cache, cache.keys[number], cache.values[number])
    x, normed = _normed(x, layer.post_norm, stack.eps, _linear(mixed, layer.output))
    mixture = layer.mixture
    if mixture is None:
        assert layer.dense is not None
        return x, _dense(normed, *layer.dense)
    stacked, top_k = stacked_experts(mixture), mixture.top_k
    logits = row_product(normed, mixture.router)
    scales = stacked.gate_up_scales, stacked.down_scales
    routes = route_rows(logits, top_k, mixture.normalize)
    added = grouped_experts(normed, *routes, stacked.gate_up, stacked.down, 0, None, *scales)
    if mixture.shared_gate is not None:
        assert layer.dense is not None
        added = added + row_product(normed, mixture.shared_gate).sigmoid() * _dense(normed, *layer.dense)
    return x, added


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
    """See :func:`omni_torch.operations.decoder_stack.decode_layers`. Other weights than :func:`_fits` says are left to the reference."""
    if not _fits(stack):
        return operation.reference(x, cos, sin, pages, lengths, block_size, keys, values, stack, capture)
    dtype = x.dtype
    x, added = x.float(), None
    captured = x
    # By these the programs of an experts' sum count those that have ended.
    arrived = torch.zeros(len(x) * triton.cdiv(x.shape[1], DOWN.columns), dtype=torch.int32, device=x.device)
    cache = DecodeCache(pages, lengths, block_size, list(keys), list(values))
    for number, layer in enumerate(stack.layers):
        if number == capture:
            captured = x if added is None else x + added
        if len(x) <= SINGLE_ROWS:
            x = _single(x, layer, stack, (cos, sin), cache, number, arrived)
        else:
            x, added = _several(x, added, layer, stack, (cos, sin), cache, number)
    _, hidden = _normed(x, stack.norm, stack.eps, added)
    return (hidden,) if capture is None else (hidden, captured.to(dtype))
