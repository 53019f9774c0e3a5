"""Products of one row and a matrix, whose weights are read for each row: for steps of very few rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from attrs import frozen

from omni_kernels.overlap import AFTER_LOADS, AT_ONCE, allow_next, launched, wait_for_previous
from omni_torch.api import Matrix


@triton.jit
def _row_product(
    x,
    norm,
    matrix,
    scales,
    bias,
    residual,
    output,
    eps,
    inner,
    columns,
    x_row,
    matrix_row,
    NORM: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Compute columns of ``norm(x) @ (matrix * scales).T + bias + residual`` of one row."""
    row, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    wait_for_previous(OVERLAP)
    weights = matrix + column[:, None].to(tl.int64) * matrix_row
    total = tl.zeros([COLUMNS, DEPTH], tl.float32)
    squares = tl.zeros([DEPTH], tl.float32)
    for begin in range(0, inner, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        filled = depth < inner
        b = tl.load(weights + depth[None, :], mask=inside[:, None] & filled[None, :], other=0.0)
        a = tl.load(x + row * x_row + depth, mask=filled, other=0.0).to(tl.float32)
        if NORM:
            squares += a * a
            a *= tl.load(norm + depth, mask=filled, other=0.0).to(tl.float32)
        total += b.to(tl.float32) * a[None, :]
    allow_next(OVERLAP)
    result = tl.sum(total, axis=1)
    if NORM:
        result *= 1.0 / tl.sqrt(tl.sum(squares, axis=0) / inner + eps)
    if SCALED:
        result *= tl.load(scales + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        result += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    place = row * columns + column
    if RESIDUAL:
        result += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + place, result.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _row_gated(
    x,
    norm,
    matrix,
    scales,
    output,
    eps,
    inner,
    columns,
    x_row,
    matrix_row,
    SCALED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Compute columns of ``silu(gate) * up`` of one row and a dense block, whose gates are above its ups."""
    row, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    gates = matrix + column[:, None].to(tl.int64) * matrix_row
    wait_for_previous(OVERLAP)
    read = x + row * x_row
    value = gated_columns(read, norm, gates, scales, columns, column, matrix_row, eps, inner, SCALED, COLUMNS, DEPTH)
    allow_next(OVERLAP)
    tl.store(output + row * columns + column, value.to(output.dtype.element_ty), mask=column < columns)


@triton.jit
def gated_columns(
    read,
    norm,
    gates,
    scales,
    columns,
    column,
    matrix_row,
    eps,
    inner,
    SCALED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Return ``silu(gate) * up`` of some columns of a row, from the pointers of their gates. ``scales``: of the first gate."""
    inside = column < columns
    ups = gates + columns.to(tl.int64) * matrix_row
    gate = tl.zeros([COLUMNS, DEPTH], tl.float32)
    up = tl.zeros([COLUMNS, DEPTH], tl.float32)
    squares = tl.zeros([DEPTH], tl.float32)
    for begin in range(0, inner, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        filled = depth < inner
        needed = inside[:, None] & filled[None, :]
        g = tl.load(gates + depth[None, :], mask=needed, other=0.0)
        u = tl.load(ups + depth[None, :], mask=needed, other=0.0)
        a = tl.load(read + depth, mask=filled, other=0.0).to(tl.float32)
        squares += a * a
        a = (a * tl.load(norm + depth, mask=filled, other=0.0).to(tl.float32))[None, :]
        gate += g.to(tl.float32) * a
        up += u.to(tl.float32) * a
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / inner + eps)
    g, u = tl.sum(gate, axis=1) * scale, tl.sum(up, axis=1) * scale
    if SCALED:
        g *= tl.load(scales + column, mask=inside, other=0.0).to(tl.float32)
        u *= tl.load(scales + columns + column, mask=inside, other=0.0).to(tl.float32)
    return g / (1.0 + tl.exp(-g)) * u


@frozen
class Tile:
    """Block sizes of one program of a product of one row: ``columns``, of which ``depth`` products are added at a time.

    ``overlap``: :data:`AT_ONCE` or :data:`AFTER_LOADS`.
    """

    columns: int
    depth: int
    warps: int
    overlap: int


FEW, WIDE, DEEP = Tile(2, 2048, 8, AT_ONCE), Tile(8, 512, 4, AFTER_LOADS), Tile(8, 1024, 8, AFTER_LOADS)
"""Of matrices of few outputs, of many outputs, and of many inputs. Measured on an H200 (docs/performance.md), as all sizes here."""

GATED = Tile(16, 256, 4, AFTER_LOADS)
"""Of gates and ups."""


def row_product(
    x: torch.Tensor,
    matrix: Matrix,
    norm: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Return ``norm(x) @ (weight * scales).T + bias + residual``, ``[n, out]`` in float32. Weights are read for each row.

    ``matrix``: of a float dtype, or of 8 bits with a scale per output.
    """
    (rows, inner), columns = x.shape, len(matrix.weight)
    output = torch.empty(rows, columns, dtype=torch.float32, device=x.device)
    tile = FEW if columns < 1024 else WIDE if inner <= 2048 else DEEP
    _row_product[(triton.cdiv(columns, tile.columns), rows)](
        x,
        x if norm is None else norm,
        matrix.weight,
        x if matrix.scales is None else matrix.scales,
        x if matrix.bias is None else matrix.bias,
        x if residual is None else residual,
        output,
        eps,
        inner,
        columns,
        x.stride(0),
        matrix.weight.stride(0),
        NORM=norm is not None,
        SCALED=matrix.scales is not None,
        BIAS=matrix.bias is not None,
        RESIDUAL=residual is not None,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        **launched(x.device, tile.overlap, tile.warps),
    )
    return output


def row_gated(x: torch.Tensor, matrix: Matrix, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """Return ``silu(gate) * up`` of a dense block, ``[n, units]`` in the dtype of ``norm``. Weights are read for each row."""
    (rows, inner), columns = x.shape, len(matrix.weight) // 2
    output = torch.empty(rows, columns, dtype=norm.dtype, device=x.device)
    _row_gated[(triton.cdiv(columns, GATED.columns), rows)](
        x,
        norm,
        matrix.weight,
        x if matrix.scales is None else matrix.scales,
        output,
        eps,
        inner,
        columns,
        x.stride(0),
        matrix.weight.stride(0),
        SCALED=matrix.scales is not None,
        COLUMNS=GATED.columns,
        DEPTH=GATED.depth,
        **launched(x.device, GATED.overlap, GATED.warps),
    )
    return output
