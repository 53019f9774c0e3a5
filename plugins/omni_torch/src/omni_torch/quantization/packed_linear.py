"""Linear layers for a CPU, with weights laid out once for oneDNN's kernels instead of at every product.

At the few rows of a decode step a product is bound by the bandwidth of reading the weight. The plain kernel reaches a
third to a half of this one's (docs/performance.md), in float32 and in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from omni_torch.operations.few_rows import BFloat16Embedding, BFloat16Linear, FewRowsLinear, few_rows_linear
from omni_torch.processes.freed_memory import return_freed_memory

LEAST_VALUES = 1 << 17
"""Smaller weights are not packed: calling oneDNN costs about 8 us more than calling the plain kernel."""

Matrix = Any
"""A weight as returned by :func:`packed`: opaque if it was packed."""


def packed(weight: torch.Tensor) -> Matrix | None:
    """Return ``weight`` (``[out, in]``) in the layout of this machine's kernels; ``None`` if the plain one is as fast."""
    if weight.device.type != "cpu" or weight.numel() < LEAST_VALUES or not _works(weight.dtype):
        return None
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())


def product(x: torch.Tensor, matrix: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ``x @ weight.T + bias`` for a packed weight."""
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, matrix, bias, "none", [], "")
    return output


@cache
def _works(dtype: torch.dtype) -> bool:
    """Return True if this machine and this build of PyTorch have the kernels for ``dtype``; they are not a public
    interface.
    """
    weight, x = torch.linspace(-1, 1, 96).view(8, 12).to(dtype), torch.linspace(1, 2, 24).view(2, 12).to(dtype)
    try:
        made = product(x, torch.ops.mkldnn._reorder_linear_weight(weight))
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(made.float(), F.linear(x.float(), weight.float()), rtol=2e-2, atol=2e-2)


class PackedLinear(nn.Module):
    """A linear layer with a packed weight. It cannot be trained, saved or moved."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._matrix, self._bias = matrix, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return product(x, self._matrix, self._bias)


Layer = TypeVar("Layer", bound=nn.Module)

Pack = Callable[[torch.Tensor, torch.Tensor | None], nn.Module | None]
"""Makes the layer that replaces a weight and a bias; ``None``: they are not replaced."""


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module | None:
    """A :data:`Pack` for oneDNN's kernels."""
    matrix = packed(weight)
    return None if matrix is None else PackedLinear(matrix, None if bias is None else bias.detach())


def pack_decoder(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module | None:
    """A :data:`Pack` for layers that mostly compute few rows: where a kernel of :func:`few_rows_linear` is installed, the weight stays
    as it is; else as :func:`pack`.
    """
    if weight.device.type == "cpu" and few_rows_linear.replaced("cpu", weight.dtype):
        return FewRowsLinear(weight.detach(), None if bias is None else bias.detach())
    return pack(weight, bias)


def keep(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module | None:
    """A :data:`Pack` that replaces nothing."""
    return None


def keep_bfloat16(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module | None:
    """A :data:`Pack` for networks that compute in float32, from weights in the dtypes of their checkpoint: those in bfloat16 stay so."""
    stays = weight.dtype == torch.bfloat16 and weight.numel() >= LEAST_VALUES
    return BFloat16Linear(weight, bias) if stays else None


def pack_linears(module: nn.Module, pack: Pack = pack, *, trim: bool = True) -> None:
    """Replace the linear layers inside ``module`` by packed ones, where that is faster. Their weights are freed.

    A module that holds other matrices has a method ``pack_weights(pack)``, which is called. ``trim``: return the memory to the system.
    """
    if pack is keep:
        return
    made: dict[nn.Module, nn.Module | None] = {}
    for child in list(module.modules()):
        _replace(child, nn.Linear, lambda layer: pack(layer.weight, layer.bias), made)
        if (pack_weights := getattr(child, "pack_weights", None)) is not None:
            pack_weights(pack)
    if trim:
        return_freed_memory()


def pack_embeddings(module: nn.Module, pack: Pack) -> None:
    """Replace the embeddings inside ``module`` of whose weights ``pack`` makes a
    :class:`omni_torch.operations.few_rows.BFloat16Linear` by a
    :class:`omni_torch.operations.few_rows.BFloat16Embedding` of the same memory, which a tied head then shares as before.
    """

    def kept(layer: nn.Embedding) -> nn.Module | None:
        found = pack(layer.weight, None)
        return BFloat16Embedding(found.matrix.weight) if isinstance(found, BFloat16Linear) else None

    made: dict[nn.Module, nn.Module | None] = {}
    for child in list(module.modules()):
        _replace(child, nn.Embedding, kept, made)


def _replace(
    module: nn.Module,
    kind: type[Layer],
    make: Callable[[Layer], nn.Module | None],
    made: dict[nn.Module, nn.Module | None],
) -> None:
    """Replace the layers of a kind that are directly in ``module`` by what ``make`` returns of them, if it is not ``None``. ``made``: what
    was returned so far, because a layer may have several names.
    """
    for name, layer in list(module._modules.items()):
        if layer is None or type(layer) is not kind:
            continue
        if layer not in made:
            made[layer] = make(layer)
        if (replacement := made[layer]) is not None:
            setattr(module, name, replacement)
