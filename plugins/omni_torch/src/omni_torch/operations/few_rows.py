"""Linear layers at the few rows of a decode step: an operation that kernels replace, and a layer that keeps its weight row-major.

A kernel that reads ``[out, in]`` needs no packed copy: the weight may be mapped from a file, and larger products, which have other
kernels, read the same memory.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import nn

from omni_torch.operations.kernels import operation
from omni_torch.quantization.coded_weights import coded_bfloat16, decoded_bfloat16

FEW_ROWS = 16
"""The most rows for which :class:`FewRowsLinear` uses the operation."""


NARROW_ROWS = 64
"""The most rows for which :class:`BFloat16Linear` uses the operation; of more the products of a widened weight are faster."""

WIDENED = 1 << 24
"""The most values of a weight that are widened at once."""

GROUP = 32
"""The inputs that share a scale, of weights with a scale per group."""


@frozen(eq=False)
class Matrix:
    """A weight ``[out, in]`` of a float dtype, that of its inputs or bfloat16 for inputs in float32; or int8 or float8_e4m3fn with one
    scale per output; or int8 or 4-bit values with a scale for each :data:`GROUP` inputs, or codes, see :func:`widened`. ``bias``:
    ``[out]``.

    ``int8_inputs``: a decode step rounds the inputs of a quantised weight as :func:`rounded_inputs`; not of int8 in groups. So do
    prompts, unless their kernel multiplies bfloat16 as fast.
    """

    weight: torch.Tensor
    scales: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    int8_inputs: bool = False


@frozen
class Groups:
    """The form of weights with a scale per group, see :func:`widened`. ``bits``: 4 or 8. ``zero_points``: of 4 bits."""

    bits: int
    zero_points: bool = False


def widened(weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, *, exact: bool = False) -> torch.Tensor:
    """Return the values of a quantised weight, ``[out, in]``.

    Args:
        weight: int8 or float8_e4m3fn with ``scales`` ``[out]``; or int8 with bfloat16 ``scales`` ``[out, in / 32]``; or uint8
            ``[out, in / 2]`` with bfloat16 ``scales`` ``[out, in / 32]``: byte j of the 16 of a group holds value j in its low half and
            value j + 16 in its high half, each plus 8. Products with the scale of a group are rounded to bfloat16, as kernels of prompts
            have them, but with ``exact``. With ``scales`` ``[out, 2, in / 32]`` the second row of each output are zero points, which
            4-bit values are stored plus instead of 8.
            Or the codes and words of :func:`omni_torch.quantization.coded_weights.coded_bfloat16`.
    """
    if scales.dtype == torch.int32:
        return decoded_bfloat16(weight, scales).to(dtype)
    if scales.dim() == 1:
        wide = torch.promote_types(dtype, torch.float32)
        return (weight.to(wide) * scales.to(wide).unsqueeze(1)).to(dtype)
    if weight.dtype == torch.int8:
        values = weight.view(len(weight), -1, GROUP).float()
    else:
        bytes_of = weight.view(len(weight), -1, GROUP // 2)
        values = torch.cat([bytes_of & 15, bytes_of >> 4], -1).float()
    if scales.dim() == 3:
        scales, zeros = scales.unbind(1)
        values -= zeros.float().unsqueeze(-1)
    elif weight.dtype != torch.int8:
        values -= 8
    if exact:
        return (values.to(dtype) * scales.to(dtype).unsqueeze(-1)).flatten(1)
    return (values * scales.float().unsqueeze(-1)).to(torch.bfloat16).to(dtype).flatten(1)


def rounded_inputs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return ``x``, ``[..., in]``, as it is multiplied as integers of 8 bits: each row, or for 4-bit weights each :data:`GROUP` of a row,
    is rounded to multiples of a 127th of its largest magnitude.
    """
    parts = x.unflatten(-1, (-1, GROUP if weight.dtype == torch.uint8 else x.shape[-1]))
    scales = parts.abs().amax(-1, keepdim=True) / 127
    return ((parts / torch.where(scales == 0, 1.0, scales)).round() * scales).flatten(-2)


def packed_int4(values: torch.Tensor) -> torch.Tensor:
    """Return values from 0 to 15, uint8 ``[out, in]``, in the bytes of :func:`widened`, ``[out, in / 2]``."""
    low, high = values.unflatten(1, (-1, GROUP)).chunk(2, dim=-1)
    return (low | (high << 4)).flatten(1).contiguous()


def _examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: one row, several, sizes that are multiples of nothing; weights of the dtype of ``x``, and quantised ones."""
    device = generator.device
    examples: list[tuple[Any, ...]] = []

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    for rows, out, size in ((1, 1024, 512), (3, 37, 29), (16, 768, 512), (7, 130, 100), (8, 2048, 1024)):
        x, bias = normal(rows, size), normal(out) if out % 2 else None
        examples.append((x, normal(out, size) * size**-0.5, None, bias))
        if dtype == torch.float32:
            examples.append((x, (normal(out, size) * size**-0.5).to(torch.bfloat16), None, bias))
        whole = torch.randint(-127, 128, (out, size), generator=generator, device=device, dtype=torch.int8)
        scales = torch.rand(out, generator=generator, device=device).to(dtype) / 100
        examples += [(x, whole, scales, bias), (x, whole, scales, bias, True)]
        examples.append((x, (normal(out, size) * 100).clamp(-448, 448).to(torch.float8_e4m3fn), scales, bias))
        if size % GROUP == 0:
            packed = torch.randint(0, 256, (out, size // 2), generator=generator, device=device, dtype=torch.uint8)
            groups = torch.rand(out, size // GROUP, generator=generator, device=device).to(torch.bfloat16) / 100
            examples += [(x, packed, groups, bias), (x, packed, groups, bias, True)]
            zeros = torch.randint(0, 16, groups.shape, generator=generator, device=device).to(torch.bfloat16)
            both_rows = torch.stack([groups, zeros], 1)
            examples += [(x, packed, both_rows, bias), (x, packed, both_rows, bias, True)]
            examples.append((x, whole, groups, bias))
            if (coded := coded_bfloat16(normal(out, size) * size**-0.5)) is not None:
                examples.append((x, *coded, bias))
    return examples


@operation("few_rows_linear", examples=_examples)
def few_rows_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    int8_inputs: bool = False,
) -> torch.Tensor:
    """Compute ``x @ (weight * scales).T + bias``.

    A row's result does not depend on the other rows, of weights in groups and codes while there are at most 32. With a quantised weight,
    ``x`` is rounded to bfloat16 first, or with ``int8_inputs`` as by :func:`rounded_inputs`. The products of a group's values with its
    scale are not rounded; of more than 32 rows a kernel may round them to bfloat16.

    Args:
        x: ``[..., in]``.
        weight: ``[out, in]`` of the same dtype, or bfloat16, whose values are then multiplied in the dtype of ``x``; or with
            ``scales``, as in :func:`widened`.

    Returns:
        ``[..., out]``.
    """
    if scales is None:
        return F.linear(x, weight.to(x.dtype) if weight.dtype == torch.bfloat16 else weight, bias)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    inputs = rounded_inputs(x.to(wide), weight) if int8_inputs else x.to(torch.bfloat16).to(wide)
    output = F.linear(inputs, widened(weight, scales, wide, exact=True)).to(x.dtype)
    return output if bias is None else output + bias


class FewRowsLinear(nn.Module):
    """A linear layer whose products of at most :data:`FEW_ROWS` rows are the operation :func:`few_rows_linear`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._weight, self._bias = weight.contiguous(), bias

    @property
    def matrix(self) -> Matrix:
        """The weight, which is not a copy."""
        return Matrix(self._weight, None, self._bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() > FEW_ROWS * x.shape[-1]:
            return F.linear(x, self._weight, self._bias)
        return few_rows_linear(x, self._weight, None, self._bias)


class BFloat16Linear(nn.Module):
    """A linear layer for inputs in float32 whose weight stays in bfloat16, as a checkpoint stores it: half of the bytes, and every product
    is that of the same values in float32. Without a kernel of :func:`few_rows_linear`, and of more than :data:`NARROW_ROWS` rows, the
    weight is widened for each product.
    """

    _weight: torch.Tensor
    _bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """``weight``: ``[out, in]`` bfloat16."""
        super().__init__()
        self.register_buffer("_weight", weight.detach().contiguous())
        self.register_buffer("_bias", None if bias is None else bias.detach().float())

    @property
    def matrix(self) -> Matrix:
        """The weight, which is not a copy."""
        return Matrix(self._weight, None, self._bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return stored_linear(x, self._weight, self._bias)


class BFloat16Embedding(nn.Module):
    """An embedding whose rows stay in bfloat16, as a checkpoint stores them, for a network that computes in float32."""

    _weight: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        """``weight``: ``[ids, width]`` bfloat16."""
        super().__init__()
        self.register_buffer("_weight", weight.detach().contiguous())

    @property
    def matrix(self) -> Matrix:
        """The rows, which are not a copy."""
        return Matrix(self._weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ``ids``, ``[..., width]`` in float32."""
        return F.embedding(ids, self._weight).float()


def stored_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ``x @ weight.T + bias``, ``[..., out]``. ``weight``: ``[out, in]`` in the dtype of ``x``, or in bfloat16 for ``x`` in
    float32, which is multiplied as :class:`BFloat16Linear` says.
    """
    if weight.dtype == x.dtype:
        return F.linear(x, weight, bias)
    if x.numel() <= NARROW_ROWS * x.shape[-1]:
        return few_rows_linear(x, weight, None, bias)
    # A prompt outside of a whole step: PyTorch's product, of so much of the weight at a time as is worth a call.
    parts = weight.split(max(1, WIDENED // max(1, x.shape[-1])))
    made = [F.linear(x, part.to(x.dtype)) for part in parts]
    output = made[0] if len(made) == 1 else torch.cat(made, dim=-1)
    return output if bias is None else output + bias


def matrix_of(layer: nn.Module) -> Matrix | None:
    """Return the matrix of a linear layer, or the rows of an embedding; ``None`` if its weight is in a layout of its own."""
    if type(layer) is nn.Linear:
        return Matrix(layer.weight.detach(), None, None if layer.bias is None else layer.bias.detach())
    if type(layer) is nn.Embedding:
        return Matrix(layer.weight.detach())
    found = getattr(layer, "matrix", None)
    return found if isinstance(found, Matrix) else None
