"""Root mean square norms, one row per program: each element is read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omni_torch import api as operations

WIDEST = 16384
"""The most elements of a row that a program holds in registers; wider rows use the reference."""


@triton.jit
def _norm_row(
    x,
    residual,
    weight,
    total,
    output,
    eps,
    size,
    inner,
    x_outer,
    x_inner,
    residual_outer,
    residual_inner,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    outer, within = row // inner, row % inner
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + outer * x_outer + within * x_inner + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        place = residual + outer * residual_outer + within * residual_inner + column
        value += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * size + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / size + eps)
    weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * size + column, (value * scale * weights).to(output.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See :func:`omni_torch.operations.shared.rms_norm`."""
    if x.shape[-1] > WIDEST:
        return operations.rms_norm.reference(x, weight, eps)
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(x, None, weight, None, output, eps)
    return output


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`omni_torch.operations.shared.add_rms_norm`."""
    if x.shape[-1] > WIDEST:
        return operations.add_rms_norm.reference(x, residual, weight, eps)
    total, output = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    launch(x, residual, weight, total, output, eps)
    return total, output


def launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    total: torch.Tensor | None,
    output: torch.Tensor,
    eps: float,
) -> None:
    """Write the norm of ``x``, or of ``x + residual`` and that sum to ``total``, to ``output`` of any dtype."""
    size = x.shape[-1]
    if not x.numel():
        return
    rows = _as_rows(x)
    added = rows if residual is None else _as_rows(residual.expand_as(x))
    block = triton.next_power_of_2(size)
    _norm_row[(rows.shape[0] * rows.shape[1],)](
        rows,
        added,
        weight.contiguous(),
        output if total is None else total,
        output,
        eps,
        size,
        rows.shape[1],
        rows.stride(0),
        rows.stride(1),
        added.stride(0),
        added.stride(1),
        ADD=residual is not None,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 8),
    )


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """Return ``[outer, inner, size]`` with dense rows; heads that were split off a projection are not copied."""
    if x.dim() < 3:
        x = x.reshape(-1, 1, x.shape[-1])
    elif x.dim() > 3:
        x = x.reshape(-1, x.shape[-2], x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()
