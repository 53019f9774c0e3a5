"""Operations that several models share, each with its reference in PyTorch. A kernel for one has the same signature.

Kernels compute in float32 or better and round once, to the dtype of their first argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from omni_torch.operations.kernels import operation

EPS = 1e-6


def _normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device).to(dtype)


def _norm_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    shapes = [(1, 2048), (7, 2048), (3, 5, 96), (512, 2048)]
    return [(_normal(shape, dtype, generator), _normal(shape[-1:], dtype, generator), EPS) for shape in shapes]


@operation("rms_norm", examples=_norm_examples)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension.

    Args:
        x: ``[..., size]``.
        weight: ``[size]``, of the same dtype.
    """
    return F.rms_norm(x, weight.shape, weight, eps)


def _residual_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    return [(x, torch.flip(x, [0]) * 0.5, weight, eps) for x, weight, eps in _norm_examples(dtype, generator)]


@operation("add_rms_norm", examples=_residual_examples)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add two tensors, and compute the root mean square norm of the rounded sum.

    Args:
        x, residual: ``[..., size]`` of one shape and dtype.
        weight: ``[size]``.

    Returns:
        ``x + residual``, and its norm.
    """
    total = x + residual
    return total, F.rms_norm(total, weight.shape, weight, eps)


def _rotary_examples(
    dtype: torch.dtype,
    generator: torch.Generator,
    shapes: Sequence[tuple[int, int, int]] = ((1, 32, 128), (7, 3, 24), (512, 8, 128)),
) -> list[tuple[Any, ...]]:
    examples = []
    for rows, heads, width in shapes:
        angles = _normal((rows, 1, width // 2), torch.float32, generator).repeat(1, 1, 2)
        examples.append(
            (_normal((rows, heads, width), dtype, generator), angles.cos().to(dtype), angles.sin().to(dtype))
        )
    return examples


@operation("rotary", examples=_rotary_examples)
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of every head by the angles of its row.

    Args:
        x: ``[n, heads, head_dim]``.
        cos, sin: ``[n, 1, head_dim]`` of the same dtype; both halves are equal.
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotary_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the neighbouring pairs of every head by the angles of its row. Arguments as of :func:`rotary`, halves of angles too."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = (each.chunk(2, dim=-1)[0] for each in (cos, sin))
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def norm_rotary(
    heads: torch.Tensor, weights: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float
) -> torch.Tensor:
    """Normalise, weigh and rotate every head: ``[n, heads, head_dim]``, with weights of each head, ``[heads,
    head_dim]``.
    """
    return rotary(F.rms_norm(heads, heads.shape[-1:], eps=eps) * weights, cos, sin)


def _store_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    examples = []
    for rows, heads, kv_heads, width in ((1, 32, 4, 128), (7, 3, 1, 24), (33, 6, 2, 64), (512, 32, 4, 128)):
        projected, cos, sin = _rotary_examples(dtype, generator, ((rows, heads + 2 * kv_heads, width),))[0]
        weights = _normal((heads + kv_heads, width), dtype, generator)
        slots = torch.randperm(rows + 9, generator=generator, device=generator.device)[:rows]
        keys, values = (_normal((rows + 9, kv_heads, width), dtype, generator) for _ in range(2))
        examples.append((projected, weights, cos, sin, slots, keys, values, EPS))
    return examples


@operation("norm_rotary_store", examples=_store_examples, writes=("keys", "values"))
def norm_rotary_store(
    projected: torch.Tensor,
    weights: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Return a layer's queries from its projection, and write its keys and values to the cache.

    Queries and keys are normalised per head, weighed and rotated; values are copied. The angles are an argument:
    positions of several axes (time, height, width) are interleaved once per step, in PyTorch, for all layers. A kernel
    that started from positions would do that, and sines of large angles, again in every layer, to save reading one
    head's width per row.

    Args:
        projected: ``[n, heads + 2 * kv_heads, head_dim]``: queries, keys, values.
        weights: ``[heads + kv_heads, head_dim]``, of the norms.
        cos, sin: ``[n, 1, head_dim]``; both halves are equal.
        slots: ``[n]`` int64, all different.
        keys, values: ``[slots, kv_heads, head_dim]`` each, written at ``slots``.

    Returns:
        The queries, ``[n, heads, head_dim]``.
    """
    kv_heads = keys.shape[1]
    turned, value = projected.split_with_sizes([len(weights), kv_heads], 1)
    query, key = norm_rotary(turned, weights, cos, sin, eps).split_with_sizes([len(weights) - kv_heads, kv_heads], 1)
    keys.index_copy_(0, slots, key)
    values.index_copy_(0, slots, value)
    return query


def _snake_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    shapes = [(1, 96, 1920), (2, 384, 600), (2, 5, 1100), (1, 3, 7)]
    return [
        (_normal(shape, dtype, generator), *(_normal(shape[1:2], dtype, generator) * 0.5 for _ in range(2)))
        for shape in shapes
    ]


@operation("snake_beta", examples=_snake_examples)
def snake_beta(x: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Compute ``x + sin(e^alpha x)^2 / e^beta``, with an alpha and a beta per channel (Ziyin et al., 2020; Lee et al.,
    2022).

    Args:
        x: ``[batch, channels, samples]``.
        alpha, beta: ``[channels]``.
    """
    frequency, scale = (each.exp().unsqueeze(0).unsqueeze(-1) for each in (alpha, beta))
    return x + (1.0 / (scale + 1e-9)) * torch.pow(torch.sin(x * frequency), 2)


def _snake_conv_examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: a vocoder's shapes (dilated, of one tap, to a single channel), and one of few channels and part
    of its context.
    """
    examples = []
    for batch, channels, out, taps, dilation, samples, padding in (
        (1, 96, 96, 7, 9, 200, 54),
        (1, 96, 1, 7, 1, 300, 6),
        (2, 192, 192, 1, 1, 130, 0),
        (3, 5, 7, 3, 2, 50, 1),
        (2, 384, 384, 7, 3, 2000, 18),
        (8, 768, 768, 1, 1, 400, 0),
    ):
        x, bias = _normal((batch, channels, samples), dtype, generator), _normal((out,), dtype, generator)
        alpha, beta = (_normal((channels,), dtype, generator) * 0.5 for _ in range(2))
        weight = _normal((out, channels, taps), dtype, generator) * (channels * taps) ** -0.5
        examples.append((x, alpha, beta, weight, bias, dilation, padding))
    return examples


@operation("snake_conv", examples=_snake_conv_examples)
def snake_conv(
    x: torch.Tensor,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    dilation: int,
    padding: int,
) -> torch.Tensor:
    """Apply :func:`snake_beta`, then a convolution with zeros before the first sample.

    Args:
        x: ``[batch, channels, samples]``.
        alpha, beta: ``[channels]``.
        weight: ``[out, channels, taps]``.
        bias: ``[out]``.
        dilation: samples between two taps.
        padding: zeros before the first sample. ``(taps - 1) * dilation`` keeps the length and is causal; less by the number of samples
            of context at the beginning of ``x``.

    Returns:
        ``[batch, out, samples + padding - (taps - 1) * dilation]``.
    """
    active = snake_beta(x, alpha, beta)
    return F.conv1d(F.pad(active, (padding, 0)) if padding else active, weight, bias, dilation=dilation)
