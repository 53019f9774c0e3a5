"""The convolutions of a vocoder as one operation: from columns of features to samples, with the state of a stream between two chunks.

A pass over a short chunk takes some hundred calls into PyTorch, and its tensors leave the caches between them. The operation takes the
layers as data, so that a kernel can compute them in one call; a model builds a :class:`SoundStack` of its weights, which are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field

from omni_torch.operations.kernels import operation
from omni_torch.operations.shared import snake_beta, snake_conv


@define(eq=False)
class Snake:
    """The activation ``x + scale * sin(frequency * x)^2`` with two parameters per channel, ``[channels]``.

    Attributes:
        alpha, beta: ``frequency = e^alpha`` and ``scale = 1 / (e^beta + 1e-9)`` if ``logarithms``; otherwise ``frequency = alpha`` and
            ``scale = 1 / (beta + 1e-9)``.
    """

    alpha: torch.Tensor
    beta: torch.Tensor
    logarithms: bool = True

    def coefficients(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return frequency and scale, ``[channels]``."""
        alpha, beta = (each.detach().flatten().to(dtype) for each in (self.alpha, self.beta))
        if self.logarithms:
            alpha, beta = alpha.exp(), beta.exp()
        return alpha, 1.0 / (beta + 1e-9)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.logarithms:
            return snake_beta(x, self.alpha.to(x.dtype), self.beta.to(x.dtype))
        frequency, scale = (each.unsqueeze(-1) for each in self.coefficients(x.dtype))
        wave = (frequency * x).sin_()
        return torch.addcmul(x, scale, wave.mul_(wave))


@define(eq=False)
class Convolution:
    """A causal convolution: weight ``[out, in, taps]``, bias ``[out]``, behind an activation or none."""

    weight: torch.Tensor
    bias: torch.Tensor
    dilation: int = 1
    before: Snake | None = None

    @property
    def reach(self) -> int:
        """Columns before the first that the first output reads."""
        return (self.weight.shape[2] - 1) * self.dilation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        if self.before is None:
            return F.conv1d(x, weight, bias, dilation=self.dilation)
        if not self.before.logarithms:
            return F.conv1d(self.before(x), weight, bias, dilation=self.dilation)
        alpha, beta = self.before.alpha.to(x.dtype), self.before.beta.to(x.dtype)
        return snake_conv(x, alpha, beta, weight, bias, self.dilation, 0)


@define(eq=False)
class Upsampling:
    """A transposed convolution by ``rate``: weight ``[in, out, kernel]``, whose kernel is the rate or twice that; bias ``[out]``.

    Attributes:
        trims: with a kernel of twice the rate, the first column of a stream gives no output, since there is none before it.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    rate: int
    before: Snake | None = None
    trims: bool = False

    @property
    def reach(self) -> int:
        return self.weight.shape[2] // self.rate - 1

    def __call__(self, x: torch.Tensor, begun: bool) -> torch.Tensor:
        """Return the outputs of the columns behind the ``reach`` first ones."""
        count = x.shape[-1] - self.reach
        active = x if self.before is None else self.before(x)
        raised = F.conv_transpose1d(active, self.weight.to(x.dtype), self.bias.to(x.dtype), stride=self.rate)
        raised = raised[..., self.reach * self.rate :][..., : count * self.rate]
        return raised[..., self.rate :] if self.trims and not begun else raised


@define(eq=False)
class Residual:
    """Two convolutions, the second of one tap, around a residual."""

    first: Convolution
    second: Convolution


@define(eq=False)
class ConvNeXt:
    """A depthwise convolution and two pointwise layers around a residual (Liu et al., 2022).

    Attributes:
        weight: ``[channels, 1, taps]``.
        bias, norm, norm_bias, gamma: ``[channels]``.
        wide, wide_bias: ``[units, channels]``, ``[units]``.
        narrow, narrow_bias: ``[channels, units]``, ``[channels]``.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    norm: torch.Tensor
    norm_bias: torch.Tensor
    wide: torch.Tensor
    wide_bias: torch.Tensor
    narrow: torch.Tensor
    narrow_bias: torch.Tensor
    gamma: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the columns behind the ``taps - 1`` first ones, without the residual."""
        kind, width = x.dtype, x.shape[1]
        mixed = F.conv1d(x, self.weight.to(kind), self.bias.to(kind), groups=width).transpose(1, 2)
        normed = F.layer_norm(mixed, (width,), self.norm.to(kind), self.norm_bias.to(kind), self.eps)
        raised = F.gelu(F.linear(normed, self.wide.to(kind), self.wide_bias.to(kind)))
        return (F.linear(raised, self.narrow.to(kind), self.narrow_bias.to(kind)) * self.gamma.to(kind)).transpose(1, 2)


Layer = Convolution | Upsampling | Residual | ConvNeXt
"""One layer of a :class:`SoundStack`."""


def memory_of(layer: Layer) -> tuple[int, int]:
    """Return the channels and the number of its last input columns that a layer keeps for the next chunk."""
    match layer:
        case Convolution():
            return layer.weight.shape[1], layer.reach
        case Upsampling():
            return layer.weight.shape[0], layer.reach
        case Residual():
            return layer.first.weight.shape[1], layer.first.reach
        case ConvNeXt():
            return layer.weight.shape[0], layer.weight.shape[2] - 1


@define(eq=False)
class SoundStack:
    """Layers from ``[batch, channels, columns]`` to ``[batch, outputs, samples]``.

    Attributes:
        places: where each layer's columns begin in a stream's memory.
        memory_size: its elements.
    """

    layers: Sequence[Layer]
    places: list[int] = field(init=False)
    memory_size: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.places, self.memory_size = [], 0
        for layer in self.layers:
            self.places.append(self.memory_size)
            channels, count = memory_of(layer)
            self.memory_size += channels * count

    def new_memory(self, batch: int, like: torch.Tensor) -> torch.Tensor:
        """Return the memory of streams at their beginning, ``[batch, memory_size]``, in float32 or wider."""
        kind = torch.promote_types(like.dtype, torch.float32)
        return torch.zeros(batch, self.memory_size, dtype=kind, device=like.device)

    def check(self, columns: int, begun: bool) -> None:
        """Raise :class:`ValueError` if a chunk has too few columns for a sample."""
        if self.samples(columns, begun) < 1:
            raise ValueError(f"a {'chunk' if begun else 'first chunk'} of {columns} columns has no samples")

    def samples(self, columns: int, begun: bool) -> int:
        """Return the number of samples that ``columns`` further columns make."""
        for layer in self.layers:
            if isinstance(layer, Upsampling):
                columns = max(columns - int(layer.trims and not begun), 0) * layer.rate
        return columns


def _examples(dtype: torch.dtype, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Return examples: a whole decoder, odd sizes, beginnings of streams and later chunks, one stream and several."""
    cases: list[dict[str, Any]] = [
        {"widths": (96, 48, 24), "hidden": 40, "columns": 9},
        {"widths": (14, 7, 5), "hidden": 9, "columns": 3, "batch": 3, "begun": True},
        {"widths": (33, 17), "hidden": 12, "columns": 40, "logarithms": False},
        {"widths": (384, 192, 96), "hidden": 256, "columns": 16, "begun": True},
    ]
    return [example(dtype, generator, **case) for case in cases]


def example(
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    widths: Sequence[int],
    hidden: int,
    columns: int,
    batch: int = 1,
    begun: bool = False,
    logarithms: bool = True,
) -> tuple[Any, ...]:
    """Return random arguments of :func:`decode_sound`: a layer of every kind, one upsampling for each width behind the first."""

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, device=generator.device) * scale).to(dtype)

    def snake(channels: int) -> Snake:
        # As in trained decoders, activations and units change little; otherwise rounding errors grow from layer to layer.
        alpha, beta = normal(channels, scale=0.3), normal(channels, scale=0.3)
        return Snake(alpha - 1, beta + 1) if logarithms else Snake(alpha + 0.5, beta + 4, False)

    def convolution(
        inner: int, outer: int, taps: int, dilation: int = 1, before: Snake | None = None, scale: float = 1.0
    ) -> Convolution:
        weight = normal(outer, inner, taps, scale=scale * (inner * taps) ** -0.5)
        return Convolution(weight, normal(outer, scale=0.1), dilation, before)

    def upsampling(inner: int, outer: int, rate: int, twice: bool) -> Upsampling:
        weight = normal(inner, outer, rate * (1 + twice), scale=inner**-0.5)
        return Upsampling(weight, normal(outer), rate, snake(inner) if twice else None, twice and logarithms)

    def convnext(width: int) -> ConvNeXt:
        units = 4 * width
        pointwise = normal(units, width, scale=width**-0.5), normal(units), normal(width, units, scale=units**-0.5)
        each = [normal(width, scale=0.1) for _ in range(5)]
        return ConvNeXt(
            normal(width, 1, 7, scale=0.4), each[0], each[1] + 1, each[2], *pointwise, each[3], each[4], 1e-6
        )

    layers: list[Layer] = [upsampling(hidden, hidden, 2, False), convnext(hidden), convolution(hidden, widths[0], 7)]
    for number, (inner, outer) in enumerate(pairwise(widths)):
        layers.append(upsampling(inner, outer, 5 - 2 * (number % 2), True))
        layers += [
            Residual(
                convolution(outer, outer, 7, dilation, snake(outer)),
                convolution(outer, outer, 1, 1, snake(outer), scale=0.3),
            )
            for dilation in (1, 9)
        ]
    stack = SoundStack([*layers, convolution(widths[-1], 1, 7, 1, snake(widths[-1]))])
    x = normal(batch, hidden, columns)
    memory = stack.new_memory(batch, x)
    if begun:
        memory = memory + normal(batch, stack.memory_size).to(memory.dtype)
    return x, memory, begun, stack


@operation("decode_sound", examples=_examples, writes=("memory",))
def decode_sound(x: torch.Tensor, memory: torch.Tensor, begun: bool, stack: SoundStack) -> torch.Tensor:
    """Compute the samples of the next columns of some streams. Chunks of any sizes give the samples of a single pass.

    Args:
        x: ``[batch, channels, columns]``.
        memory: ``[batch, memory_size]``, float32 or wider, of :meth:`SoundStack.new_memory` or of the chunk before; written.
        begun: False for the first chunk of these streams.

    Returns:
        ``[batch, outputs, samples]``.

    Raises:
        ValueError: so few columns that no sample could be computed, which only a first chunk can have.
    """
    stack.check(x.shape[2], begun)
    for layer, place in zip(stack.layers, stack.places, strict=True):
        channels, count = memory_of(layer)
        kept = memory[:, place : place + channels * count].unflatten(1, (channels, count))
        joined = torch.cat([kept.to(x.dtype), x], dim=2) if count else x
        if count:
            kept.copy_(joined[..., joined.shape[2] - count :])
        match layer:
            case Convolution():
                x = layer(joined)
            case Upsampling():
                x = layer(joined, begun)
            case Residual():
                x = layer.second(layer.first(joined)) + x
            case ConvNeXt():
                x = layer(joined) + x
    return x
