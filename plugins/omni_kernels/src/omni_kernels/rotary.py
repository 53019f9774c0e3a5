"""Rotary positions: each pair of elements is read once and written once, where PyTorch makes four tensors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _turn(x, cos, sin, output, heads, half, x_row, x_head, cos_row, sin_row, HALF: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, HALF)
    inside = column < half
    place = x + row * x_row + head * x_head + column
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + row * cos_row + column, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + row * sin_row + column, mask=inside, other=0.0).to(tl.float32)
    turned = output + (row * heads + head) * half * 2 + column
    tl.store(turned, (first * c - second * s).to(output.dtype.element_ty), mask=inside)
    tl.store(turned + half, (second * c + first * s).to(output.dtype.element_ty), mask=inside)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See :func:`omni_core.model_runner.operations.rotary`."""
    rows, heads, width = x.shape
    x, cos, sin = (each if each.stride(-1) == 1 else each.contiguous() for each in (x, cos, sin))
    output = torch.empty(rows, heads, width, dtype=x.dtype, device=x.device)
    if x.numel():
        _turn[(rows, heads)](
            x,
            cos,
            sin,
            output,
            heads,
            width // 2,
            x.stride(0),
            x.stride(1),
            cos.stride(0),
            sin.stride(0),
            HALF=triton.next_power_of_2(width // 2),
            num_warps=1,
        )
    return output
