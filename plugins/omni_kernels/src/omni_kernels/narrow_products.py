"""Products of some rows and a matrix of 8 bits with a scale per output: weights are read as they are and widened in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omni_kernels.experts import NARROW
from omni_torch import api as operations
from omni_torch.api import Matrix

COLUMNS, DEPTH = 32, 128
"""Outputs of a program, and the products that it adds at a time. They are the same for any number of rows, so that a row's sums are."""

MOST_ROWS = 32
"""The most rows of a program, and 16 the fewest: larger tiles have other instructions, which add in another order."""


@triton.jit
def _narrow_product(
    x,
    matrix,
    scales,
    bias,
    output,
    rows,
    inner,
    columns,
    x_row,
    matrix_row,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Compute columns of ``x @ (matrix * scales).T + bias`` of some rows."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there, inside = row < rows, column < columns
    read = x + row[:, None].to(tl.int64) * x_row
    weights = matrix + column[None, :].to(tl.int64) * matrix_row
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, inner, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        filled = depth < inner
        a = tl.load(read + depth[None, :], mask=there[:, None] & filled[None, :], other=0.0)
        b = tl.load(weights + depth[:, None], mask=filled[:, None] & inside[None, :], other=0.0)
        if EXACT:
            a, b = a.to(tl.float32), b.to(tl.float32)
        else:
            b = b.to(a.dtype)
        total = tl.dot(a, b, total, input_precision="ieee")
    total *= tl.load(scales + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    if BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    target = output + row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(target, total.to(output.dtype.element_ty), mask=there[:, None] & inside[None, :])


def narrow_product(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """Return ``x @ (weight * scales).T + bias``, ``[n, out]`` in the dtype of ``x`` ``[n, in]``, which is rounded to bfloat16."""
    (rows, inner), columns = x.shape, len(matrix.weight)
    output = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    if not output.numel():
        return output
    x = x.to(torch.bfloat16)
    x = x if x.stride(1) == 1 else x.contiguous()
    height = MOST_ROWS if rows > 16 else 16
    _narrow_product[(triton.cdiv(columns, COLUMNS), triton.cdiv(rows, height))](
        x,
        matrix.weight,
        matrix.scales,
        x if matrix.bias is None else matrix.bias,
        output,
        rows,
        inner,
        columns,
        x.stride(0),
        matrix.weight.stride(0),
        BIAS=matrix.bias is not None,
        ROWS=height,
        COLUMNS=COLUMNS,
        DEPTH=DEPTH,
        # The interpreter multiplies the bits of bfloat16 as integers.
        EXACT=not isinstance(_narrow_product, triton.JITFunction),
        num_warps=4,
        num_stages=4,
    )
    return output


def is_narrow(matrix: Matrix) -> bool:
    """Return whether a matrix has 8 bits, a scale per output, and rows that are read as they are."""
    scales = matrix.scales
    if scales is None or scales.dim() != 1 or matrix.int8_inputs:
        return False
    return matrix.weight.dtype in NARROW and matrix.weight.stride(-1) == 1 and scales.stride(0) == 1


def few_rows_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    int8_inputs: bool = False,
) -> torch.Tensor:
    """See :func:`omni_torch.operations.few_rows.few_rows_linear`. Other weights than :func:`is_narrow` ones are left to the reference."""
    matrix = Matrix(weight, scales, bias, int8_inputs)
    if not is_narrow(matrix):
        return operations.few_rows_linear.reference(x, weight, scales, bias, int8_inputs)
    return narrow_product(x.reshape(-1, x.shape[-1]), matrix).view(*x.shape[:-1], len(weight))
