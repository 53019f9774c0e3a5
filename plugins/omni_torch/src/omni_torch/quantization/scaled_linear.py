"""Linear layers with int8 or float8 weights for a GPU: half of bfloat16's bytes, which a decode step waits for.

There is one scale per output channel. Products widen the weights in registers where a kernel of ``few_rows_linear`` does; products of many
rows, which wait for the arithmetic, widen the weight once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from omni_torch.operations.few_rows import WIDENED, Matrix, few_rows_linear, widened
from omni_torch.quantization.quantized_values import quantized_float8, quantized_int8

ALIGNMENT = 16
"""Inputs are a multiple of this: rows then begin where a GPU reads 16 bytes at once."""

FLOAT8_CAPABILITY = (8, 9)
"""The compute capability from which on GPUs convert float8_e4m3fn in hardware, and Triton compiles it."""

MOST_ROWS = 64
"""The most rows of a product that widens the weight in registers, for which it is read once or twice. Not measured on a GPU."""

Rounded = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Maps a weight ``[out, in]`` to values and a scale per output; of a weight on the meta device to their shapes."""


class ScaledLinear(nn.Module):
    """A linear layer with int8 or float8_e4m3fn weights and a scale per output; outputs have the dtype of the inputs.

    Where there is a kernel, products of at most :data:`MOST_ROWS` rows are those of
    :func:`omni_torch.operations.few_rows.few_rows_linear`, which
    rounds inputs to bfloat16; others are those of the weight times its scales, rounded to the dtype of the inputs.
    """

    _weight: torch.Tensor
    _scales: torch.Tensor
    _bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, rounded: Rounded) -> None:
        """``weight``: ``[out, in]`` of any float dtype."""
        super().__init__()
        values, scales = rounded(weight.detach())
        self.register_buffer("_weight", values)
        self.register_buffer("_scales", scales)
        self.register_buffer("_bias", None if bias is None else bias.detach())

    @property
    def scales(self) -> torch.Tensor:
        """The scale of each output, ``[out]`` in float32."""
        return self._scales

    @property
    def matrix(self) -> Matrix:
        """The quantised weight."""
        return Matrix(self._weight, self._scales, self._bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() <= MOST_ROWS * x.shape[-1] and few_rows_linear.replaced(x.device.type, x.dtype):
            return few_rows_linear(x, self._weight, self._scales, self._bias)
        # Not the sum is scaled: values of 8 bits are thousands of times larger than weights, and float16 ends at 65,504.
        # Of so much of the weight at a time as is worth a call: it is in float32 on the way.
        rows = max(1, WIDENED // max(1, x.shape[-1]))
        parts = zip(self._weight.split(rows), self._scales.split(rows), strict=True)
        wide = [widened(values, scales, x.dtype) for values, scales in parts]
        return F.linear(x, wide[0] if len(wide) == 1 else torch.cat(wide), self._bias)


GPU_QUANTIZATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor | None], ScaledLinear]] = {
    "int8_weight_only": partial(ScaledLinear, rounded=quantized_int8),
    "float8_weight_only": partial(ScaledLinear, rounded=quantized_float8),
}
"""The schemes of stages on a GPU, by their names in torchao."""


def missing(name: str, device: str) -> str | None:
    """Return why this machine cannot compute with one of :data:`GPU_QUANTIZATIONS`, and what can; ``None``: it can."""
    if name != "float8_weight_only":
        return None
    try:
        found = torch.cuda.get_device_capability(device)
    except (RuntimeError, AssertionError) as error:  # no such GPU, or a PyTorch without CUDA
        return f"needs a GPU, but {device} cannot be used: {error}; see `omni doctor`, or change the stage's `gpu`"
    if found >= FLOAT8_CAPABILITY:
        return None
    needed, there = ".".join(map(str, FLOAT8_CAPABILITY)), ".".join(map(str, found))
    return f"needs a GPU of compute capability {needed} or more, that of {device} is {there}; use int8_weight_only"
