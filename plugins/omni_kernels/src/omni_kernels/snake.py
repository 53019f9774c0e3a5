"""The vocoder's activation: PyTorch makes five passes over the largest tensors of the network, this one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _activate(x, alpha, beta, output, channels, samples, blocks, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    row, block = program // blocks, program % blocks
    frequency = tl.exp(tl.load(alpha + row % channels).to(tl.float32))
    scale = 1.0 / (tl.exp(tl.load(beta + row % channels).to(tl.float32)) + 1e-9)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < samples
    place = row.to(tl.int64) * samples + column
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    wave = tl.sin(value * frequency)
    tl.store(output + place, (value + scale * wave * wave).to(output.dtype.element_ty), mask=inside)


def snake_beta(x: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """See :func:`omni_core.model_runner.operations.snake_beta`."""
    x = x.contiguous()
    output = torch.empty_like(x)
    if x.numel():
        batch, channels, samples = x.shape
        blocks = triton.cdiv(samples, BLOCK)
        _activate[(batch * channels * blocks,)](
            x, alpha.contiguous(), beta.contiguous(), output, channels, samples, blocks, BLOCK=BLOCK
        )
    return output
