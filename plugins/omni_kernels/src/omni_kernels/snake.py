"""The vocoder's activation in one pass over the network's largest tensors, where PyTorch makes five.

Fused with the convolution after it there is none: the product applies the activation while it loads. Every tap
recomputes it, so it must cost few instructions (a dozen): the argument is counted in half turns of the sine, whose
square has that period.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from omni_torch import api as operations

BLOCK = 1024

SAMPLES, CHANNELS = 64, 32
"""Output samples per program, and input channels per iteration."""

ENOUGH = 128
"""The number of programs that keeps a GPU busy: about one per multiprocessor."""


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
    """See :func:`omni_torch.operations.shared.snake_beta`."""
    x = x.contiguous()
    output = torch.empty_like(x)
    if x.numel():
        batch, channels, samples = x.shape
        blocks = triton.cdiv(samples, BLOCK)
        _activate[(batch * channels * blocks,)](
            x, alpha.contiguous(), beta.contiguous(), output, channels, samples, blocks, BLOCK=BLOCK
        )
    return output


@triton.jit
def _sine_squared(half_turns):
    """Return ``sin(pi x)^2``, to 2e-7: a minimax polynomial in the square of the distance to the nearest integer."""
    # Adding 1.5 * 2^23 rounds to an integer. Beyond 2^22, float32 has no phase left, but the result stays within a
    # sine's range.
    apart = half_turns - ((half_turns + 12582912.0) - 12582912.0)
    square = tl.minimum(apart * apart, 0.25)
    series = square * -3.2729456424713135 + 12.990730285644531
    series = series * square - 30.085952758789062
    series = series * square + 42.72538375854492
    series = series * square - 32.469581604003906
    return (series * square + 9.869603157043457) * square


@triton.jit
def _convolve(
    x,
    alpha,
    beta,
    weight,
    bias,
    output,
    channels,
    samples,
    outs,
    length,
    taps,
    dilation,
    padding,
    weight_out,
    weight_tap,
    OUT: tl.constexpr,
    SAMPLES: tl.constexpr,
    CHANNELS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Compute some samples of some output channels: the product of activated inputs and weights, over channels and
    taps.

    Samples are its rows, so that each of them belongs to one warp, which activates it for all output channels.
    """
    row = tl.program_id(2).to(tl.int64)
    out = tl.program_id(1) * OUT + tl.arange(0, OUT)
    sample = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    total = tl.zeros([SAMPLES, OUT], tl.float32)
    for step in range(tl.cdiv(channels, CHANNELS) * taps):
        # All taps of some channels are processed together, so that their inputs are in the cache.
        channel, tap = step // taps * CHANNELS + tl.arange(0, CHANNELS), step % taps
        known = channel < channels
        at = sample + tap * dilation - padding
        there = known[None, :] & (at[:, None] >= 0) & (at[:, None] < samples)
        place = x + (row * channels + channel[None, :]) * samples + at[:, None]
        value = tl.load(place, mask=there, other=0.0).to(tl.float32)
        frequency = tl.exp(tl.load(alpha + channel, mask=known, other=0.0).to(tl.float32)) * 0.3183098861837907
        scale = 1.0 / (tl.exp(tl.load(beta + channel, mask=known, other=0.0).to(tl.float32)) + 1e-9)
        active = (value + scale[None, :] * _sine_squared(value * frequency[None, :])).to(x.dtype.element_ty)
        weights = tl.load(
            weight + tap * weight_tap + out[None, :] * weight_out + channel[:, None],
            mask=(out[None, :] < outs) & known[:, None],
            other=0.0,
        )
        if EXACT:
            active, weights = active.to(tl.float32), weights.to(tl.float32)
        total += tl.dot(active, weights, input_precision="tf32x3")
    total += tl.load(bias + out, mask=out < outs, other=0.0).to(tl.float32)[None, :]
    place = output + (row * outs + out[None, :]) * length + sample[:, None]
    tl.store(place, total.to(output.dtype.element_ty), mask=(out[None, :] < outs) & (sample[:, None] < length))


def snake_conv(
    x: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    dilation: int,
    padding: int,
) -> torch.Tensor:
    """See :func:`omni_torch.operations.shared.snake_conv`."""
    batch, channels, samples = x.shape
    outs, _, taps = weight.shape
    length = samples + padding - (taps - 1) * dilation
    if batch == 0 or length <= 0 or weight.dtype != x.dtype:
        return operations.snake_conv.reference(x, alpha, beta, weight, bias, dilation, padding)
    if weight.stride(1) != 1:
        weight = weight.permute(2, 0, 1).contiguous().permute(1, 2, 0)  # read densely, tap by tap
    output = torch.empty(batch, outs, length, dtype=x.dtype, device=x.device)
    blocks, out = triton.cdiv(length, SAMPLES), _outs_at_once(outs, length, 64 if x.dtype == torch.float32 else 128)
    _convolve[(blocks, triton.cdiv(outs, out), batch)](
        x.contiguous(),
        alpha.contiguous(),
        beta.contiguous(),
        weight,
        bias.contiguous(),
        output,
        channels,
        samples,
        outs,
        length,
        taps,
        dilation,
        padding,
        weight.stride(0),
        weight.stride(2),
        OUT=out,
        SAMPLES=SAMPLES,
        CHANNELS=CHANNELS,
        # The interpreter multiplies the bits of bfloat16 as integers.
        EXACT=x.dtype == torch.bfloat16 and not isinstance(_convolve, triton.JITFunction),
        num_warps=8 if out == 128 else 4,
    )
    return output


def _outs_at_once(outs: int, length: int, most: int) -> int:
    """Return the output channels per program: many share the activation's work, few keep all of a GPU's multiprocessors
    busy.

    It does not depend on the batch, so that a request's sound is bitwise the same in every batch.
    """
    out = min(max(triton.next_power_of_2(outs), 16), most)
    while out > 32 and triton.cdiv(outs, out) * triton.cdiv(length, SAMPLES) < ENOUGH:
        out //= 2
    return out
