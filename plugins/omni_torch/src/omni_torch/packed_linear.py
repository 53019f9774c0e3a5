"""Linear layers for a CPU, with weights laid out once for oneDNN's kernels instead of at every product.

At the few rows of a decode step a product is bound by how fast the weight is read. The plain kernel reads it at a third to a
half of what this one reaches (docs/performance.md), in float32 and in bfloat16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

LEAST_VALUES = 1 << 17
"""Smaller weights stay as they are: calling oneDNN costs about 8 us more than calling the plain kernel."""

Matrix = Any
"""A weight as :func:`packed` gives it: opaque where it was packed."""


def packed(weight: torch.Tensor) -> Matrix | None:
    """``weight`` (``[out, in]``) in the layout of this machine's kernels; ``None`` where the plain one serves as well."""
    if weight.device.type != "cpu" or weight.numel() < LEAST_VALUES or not _works(weight.dtype):
        return None
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())


def product(x: torch.Tensor, matrix: Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias`` for a weight that was packed."""
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, matrix, bias, "none", [], "")
    return output


@cache
def _works(dtype: torch.dtype) -> bool:
    """Whether this machine and this build of PyTorch have the kernels for ``dtype``. They are no public interface, so ask."""
    weight, x = torch.linspace(-1, 1, 96).view(8, 12).to(dtype), torch.linspace(1, 2, 24).view(2, 12).to(dtype)
    try:
        made = product(x, torch.ops.mkldnn._reorder_linear_weight(weight))
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(made.float(), F.linear(x.float(), weight.float()), rtol=2e-2, atol=2e-2)


class PackedLinear(nn.Module):
    """A linear layer whose weight was packed. It cannot be trained, saved or moved."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._matrix, self._bias = matrix, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return product(x, self._matrix, self._bias)


Pack = Callable[[torch.Tensor, torch.Tensor | None], nn.Module | None]
"""From a weight and a bias to the layer that takes their place; ``None``: they stay as they are."""


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear | None:
    """A :data:`Pack`: for oneDNN's kernels."""
    matrix = packed(weight)
    return None if matrix is None else PackedLinear(matrix, None if bias is None else bias.detach())


def pack_linears(module: nn.Module, pack: Pack = pack) -> None:
    """Replace the linear layers inside ``module`` by packed ones, wherever that pays. Their weights are freed.

    A module that holds other matrices has a method ``pack_weights(pack)``, which is called.
    """
    for child in list(module.modules()):
        for name, layer in list(child.named_children()):
            if type(layer) is nn.Linear and (replacement := pack(layer.weight, layer.bias)) is not None:
                setattr(child, name, replacement)
        if (pack_weights := getattr(child, "pack_weights", None)) is not None:
            pack_weights(pack)
    _return_freed_memory()


def _return_freed_memory() -> None:
    """To the system. glibc keeps what was freed between tensors that stay: half of a quantised model, seen from outside."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
