"""Sequences of several requests side by side in one tensor, with silence between them as wide as the widest convolution reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-5

_BLOCK = {"cpu": 65_536}
"""Values that are normalised at a time, so that they stay in the cache of a core; all at once elsewhere."""


class Joined:
    """Sequences ``[channels, n]`` in one tensor.

    Attributes:
        values: ``[channels, total]``. What lies between the sequences is zero only where a function says so.
        spans: the places of the sequences.
    """

    def __init__(self, values: torch.Tensor, spans: list[slice]) -> None:
        self.values, self.spans = values, spans

    @classmethod
    def of(cls, parts: Sequence[torch.Tensor], gap: int) -> Joined:
        """Join sequences; there are ``gap`` zeros between two."""
        if len(parts) == 1:
            return cls(parts[0], [slice(0, parts[0].shape[1])])
        spans, end = [], 0
        for part in parts:
            spans.append(slice(end, end + part.shape[1]))
            end += part.shape[1] + gap
        return cls(parts[0].new_zeros(len(parts[0]), end - gap), spans).with_parts(parts)

    def parts(self) -> list[torch.Tensor]:
        """Return the sequences, as views."""
        return [self.values[:, span] for span in self.spans]

    def with_parts(self, parts: Sequence[torch.Tensor]) -> Joined:
        """Return other sequences of the same lengths, with zeros between them."""
        if len(parts) == 1:
            return self.like(parts[0])
        values = parts[0].new_zeros(len(parts[0]), self.values.shape[1])
        for part, span in zip(parts, self.spans, strict=True):
            values[:, span] = part
        return self.like(values)

    def like(self, values: torch.Tensor) -> Joined:
        """Return other values at the same places."""
        return Joined(values, self.spans)

    def cat(self, *others: torch.Tensor) -> Joined:
        """Return these values with further channels."""
        return self.like(torch.cat([self.values, *others]))

    def convolved(self, conv: nn.Module) -> Joined:
        """Return a convolution that keeps lengths. Between the sequences its result is not zero."""
        return self.like(conv(self.values[None])[0])


class StyledNorm(nn.Module):
    """Instance normalisation whose scale and shift come from a voice's vector (AdaIN in StyleTTS 2), and an activation."""

    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(channels, affine=True)  # ones and zeros where the checkpoint has none
        self.fc = nn.Linear(style, 2 * channels)

    def leaky(self, x: Joined, styles: torch.Tensor) -> Joined:
        """Apply it and a leaky ReLU to each sequence, with the published code's roundings; zero between the sequences.

        Args:
            styles: one vector per sequence, ``[sequences, style]``.
        """
        found = []
        for values, style in zip(x.parts(), styles, strict=True):
            scale, shift = self.fc(style[None]).reshape(1, -1, 1).chunk(2, dim=1)
            found.append(F.leaky_relu_((1 + scale) * self.norm(values[None]) + shift, 0.2)[0])
        return x.with_parts(found)

    def snake(self, x: Joined, styles: torch.Tensor, alpha: torch.Tensor) -> Joined:
        """Apply it and ``x + sin(alpha x)² / alpha``, a few channels at a time; zero between the sequences.

        Args:
            alpha: per channel, ``[1, channels, 1]``.
        """
        found = torch.empty_like(x.values) if len(x.spans) == 1 else torch.zeros_like(x.values)
        alpha, inverse = alpha[0], 1 / alpha[0]
        for span, style in zip(x.spans, styles, strict=True):
            values, out = x.values[:, span], found[:, span]
            scale, shift = self.fc(style[None]).reshape(-1, 1).chunk(2)
            scale, shift = (1 + scale) * self.norm.weight[:, None], (1 + scale) * self.norm.bias[:, None] + shift
            count = max(1, _BLOCK.get(values.device.type, values.numel()) // values.shape[1])
            for begin in range(0, len(values), count):
                rows = slice(begin, begin + count)
                given = values[rows]
                result = given - given.mean(1, keepdim=True)
                variance = torch.linalg.vecdot(result, result)[:, None] / result.shape[1]
                result.mul_(scale[rows] * torch.rsqrt(variance + EPSILON)).add_(shift[rows])
                wave = torch.mul(result, alpha[rows]).sin_()
                torch.addcmul(result, wave.square_(), inverse[rows], out=out[rows])
        return x.like(found)


class StyledBlock(nn.Module):
    """A residual block of the prosody and of the decoder; may double the length."""

    def __init__(self, inputs: int, outputs: int, style: int, doubles: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(inputs, outputs, 3, padding=1), nn.Conv1d(outputs, outputs, 3, padding=1)
        self.norm1, self.norm2 = StyledNorm(style, inputs), StyledNorm(style, outputs)
        self.conv1x1 = nn.Conv1d(inputs, outputs, 1, bias=False) if inputs != outputs else None
        self.pool: Any = None
        if doubles:
            self.pool = nn.ConvTranspose1d(inputs, inputs, 3, 2, padding=1, output_padding=1, groups=inputs)

    def forward(self, x: Joined, styles: torch.Tensor) -> Joined:
        """Return ``[outputs, n]`` of ``[inputs, n]``, or of twice the length."""
        residual = self.norm1.leaky(x, styles)
        if self.pool is not None:
            residual = Joined.of([self.pool(each[None])[0] for each in residual.parts()], 1)
            x = Joined.of([each.repeat_interleave(2, dim=1) for each in x.parts()], 1)
        residual = residual.convolved(self.conv1)
        residual = self.norm2.leaky(residual, styles).convolved(self.conv2)
        straight = x.values if self.conv1x1 is None else self.conv1x1(x.values[None])[0]
        return x.like((residual.values + straight) * 0.5**0.5)
