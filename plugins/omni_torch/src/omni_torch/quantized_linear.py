"""Linear layers with int8 weights for a CPU: a quarter of float32's bytes, and a decode step is bound by reading them.

Weights are quantised symmetrically, from float32, with one scale per output channel. The kernels are PyTorch's own and
partly private, so they are probed. docs/performance.md has the measurements, and the reasons for not using torchao.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import nn

from omni_core.errors import ConfigError
from omni_torch.packed_linear import Pack, pack

LEAST_VALUES = 1 << 13
"""Smaller weights are not quantised: the bytes of gates and the like are negligible."""

LARGEST = 127
"""The largest magnitude of an int8 value."""

MOST_ROWS = 24
"""The most rows of one call of the kernel of int8 weights. For more it is faster to make bfloat16 weights for one
product.
"""

ALIGNMENT = 16
"""The kernel of int8 weights reads 16 values at once, unchecked: with other widths it reads past the end, or crashes.
"""


class Int8WeightLinear(nn.Module):
    """A linear layer with int8 weights and bfloat16 inputs, summed in float32. Its output has the dtype of its input."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """``weight``: ``[out, in]`` of any float dtype, ``in`` a multiple of :data:`ALIGNMENT`."""
        super().__init__()
        wide = weight.detach().float()
        # Rounded before it is used, so that bfloat16's rounding of a scale is not an error of the product.
        self._scales = (_largest(wide).squeeze(1) / LARGEST).to(torch.bfloat16)
        self._weight = _quantized(wide, self._scales.float().unsqueeze(1))
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16).contiguous()
        if len(rows) > MOST_ROWS:
            output = F.linear(rows, self._weight.to(torch.bfloat16)) * self._scales
        else:
            if rows.data_ptr() % (2 * ALIGNMENT):
                rows = rows.clone()
            output = torch._weight_int8pack_mm(rows, self._weight, self._scales)
        output = output.to(x.dtype).view(*x.shape[:-1], len(self._scales))
        return output if self._bias is None else output + self._bias


class Int8Linear(nn.Module):
    """A linear layer with int8 weights and int8 inputs, each row of them with its own scale, summed in int32.

    A row's result does not depend on the other rows. The output has the dtype of the input.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """``weight``: ``[out, in]`` of any float dtype."""
        super().__init__()
        wide = weight.detach().float()
        scales = _largest(wide) / LARGEST
        # The shape of a decode step's inputs, for which the layout of the weights is chosen.
        self._matrix = torch.ops.onednn.qlinear_prepack(_quantized(wide, scales), [8, wide.shape[1]])
        self._scales, self._zeros = scales.squeeze(1), torch.zeros(len(wide), dtype=torch.int32)
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()
        scales = _largest(rows) / LARGEST
        # The kernels take unsigned inputs. Adding a half makes the conversion round instead of truncate.
        unsigned = (rows / scales).add_(128.5).to(torch.uint8)
        output = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, 128, self._matrix, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        output = output.mul_(scales).to(x.dtype).view(*x.shape[:-1], len(self._scales))
        return output if self._bias is None else output + self._bias


def _largest(x: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each row, at least a tiny positive number: ``[n, k]`` to ``[n, 1]``."""
    return x.abs().amax(-1, keepdim=True).clamp_(min=1e-20)


def _quantized(wide: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (wide / scales).round_().clamp_(-LARGEST, LARGEST).to(torch.int8)


@frozen
class Quantization:
    """A way to store weights."""

    layer: Callable[[torch.Tensor, torch.Tensor | None], nn.Module]
    needs: str
    """The required CPU features, for messages."""
    alignment: int
    """Input widths must be a multiple of this."""


QUANTIZATIONS = {
    "int8_weight_only": Quantization(Int8WeightLinear, "a CPU with AVX2 or AVX-512", ALIGNMENT),
    "int8_dynamic_activation_int8_weight": Quantization(Int8Linear, "a CPU with AVX2 or AVX-512 and VNNI", 1),
}
"""The schemes by their names in torchao and transformers."""


def pack_for(quantization: str | None, device: str) -> Pack:
    """Return the argument for :func:`omni_torch.packed_linear.pack_linears`. ``None``: weights keep their dtype, in a
    faster layout.

    Raises:
        ConfigError: the name is unknown, or this machine has no kernel for it.
    """
    if quantization is None:
        return pack
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"quantization: {quantization!r} is unknown; there are: {', '.join(QUANTIZATIONS)}")
    chosen = QUANTIZATIONS[quantization]
    if torch.device(device).type != "cpu":
        raise ConfigError(f"quantization: {quantization!r} is for stages on a CPU, but this one is on {device}")
    if not _works(chosen):
        raise ConfigError(f"quantization: {quantization!r} needs {chosen.needs}, and a PyTorch with kernels for it")

    def quantize(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module | None:
        if weight.numel() < LEAST_VALUES or weight.shape[1] % chosen.alignment:
            return pack(weight, bias)
        return chosen.layer(weight, bias)

    return quantize


@cache
def _works(quantization: Quantization) -> bool:
    """Return True if this machine and this build of PyTorch have the kernels. Tested with extreme values: kernels for
    older machines overflow.
    """
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):  # there PyTorch has test kernels only
        return False
    weight, x = torch.ones(16, 256), torch.ones(2, 256)
    weight[:, ::7] = -0.5
    try:
        made = quantization.layer(weight, None)(x)
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(made, F.linear(x, weight), rtol=2e-2)
