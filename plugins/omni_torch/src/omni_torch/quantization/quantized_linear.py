"""Linear layers with int8 or 4-bit weights for a CPU: a quarter or a seventh of float32's bytes, which a decode step waits for; and the
choice of those for a GPU (:mod:`omni_torch.quantization.scaled_linear`).

Weights are quantised symmetrically, from float32, with one scale per output channel, or per group of 32 inputs. The kernels of
int8 are PyTorch's own and partly private, so they are probed. docs/performance.md has the measurements, and the reasons for not using
torchao.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Self

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import nn

from omni_core.api import ConfigError
from omni_torch.operations.few_rows import FEW_ROWS, GROUP, Matrix, few_rows_linear, widened
from omni_torch.quantization.coded_weights import UNIT, coded_bfloat16
from omni_torch.quantization.packed_linear import Pack, keep, pack_decoder
from omni_torch.quantization.quantized_values import (
    LARGEST,
    largest,
    quantized_int4,
    quantized_int8,
    quantized_int8_groups,
)
from omni_torch.quantization.scaled_linear import ALIGNMENT as GPU_ALIGNMENT
from omni_torch.quantization.scaled_linear import GPU_QUANTIZATIONS, missing

LEAST_VALUES = 1 << 13
"""Smaller weights are not quantised: the bytes of gates and the like are negligible."""

MOST_ROWS = 24
"""The most rows of one call of the kernel of int8 weights. For more it is faster to make bfloat16 weights for one
product.
"""

ALIGNMENT = 16
"""The kernel of int8 weights reads 16 values at once, unchecked: with other widths it reads past the end, or crashes.
"""


class Int8WeightLinear(nn.Module):
    """A linear layer with int8 weights and bfloat16 inputs, summed in float32. Its output has the dtype of its input."""

    _weight: torch.Tensor
    _scales: torch.Tensor
    _bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """``weight``: ``[out, in]`` of any float dtype, ``in`` a multiple of :data:`ALIGNMENT`."""
        super().__init__()
        # Rounded before they are used, so that bfloat16's rounding of a scale is not an error of the product.
        values, scales = quantized_int8(weight.detach(), torch.bfloat16)
        self.register_buffer("_weight", values)
        self.register_buffer("_scales", scales)
        self.register_buffer("_bias", None if bias is None else bias.detach())

    @property
    def matrix(self) -> Matrix:
        """The quantised weight."""
        return Matrix(self._weight, self._scales, self._bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() <= FEW_ROWS * x.shape[-1] and few_rows_linear.replaced(x.device.type, x.dtype):
            return few_rows_linear(x, self._weight, self._scales, self._bias)
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

    A row's result does not depend on the other rows. The output has the dtype of the input. Where a kernel of ``few_rows_linear`` is
    installed, weights keep their rows, and products of more than :data:`omni_torch.operations.few_rows.FEW_ROWS` rows have bfloat16 inputs.
    """

    _weight: torch.Tensor
    _scales: torch.Tensor
    _bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """``weight``: ``[out, in]`` of any float dtype."""
        super().__init__()
        values, scales = quantized_int8(weight.detach())
        self.register_buffer("_weight", values)
        self.register_buffer("_scales", scales)
        self.register_buffer("_bias", None if bias is None else bias.detach())
        self._zeros = torch.zeros(len(values), dtype=torch.int32)
        self._matrix: torch.Tensor | None = None
        self._keeps_rows = few_rows_linear.replaced("cpu", weight.dtype)

    @property
    def matrix(self) -> Matrix | None:
        """The quantised weight, if it keeps its rows."""
        return Matrix(self._weight, self._scales, self._bias, int8_inputs=True) if self._keeps_rows else None

    def pack_weights(self, pack: Pack) -> None:
        """Lay the weight out for the kernel, once it has values."""
        if self._weight.device.type == "cpu" and not self._keeps_rows:
            self._laid_out()

    def _laid_out(self) -> torch.Tensor:
        if self._matrix is None:
            # The shape of a decode step's inputs, for which the layout of the weights is chosen.
            self._matrix = torch.ops.onednn.qlinear_prepack(self._weight, [8, self._weight.shape[1]])
            self._weight = self._weight.new_empty(0)
        return self._matrix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._keeps_rows:
            return self._kept_rows(x)
        rows = x.reshape(-1, x.shape[-1]).float()
        scales = largest(rows) / LARGEST
        # The kernels take unsigned inputs. Adding a half makes the conversion round instead of truncate.
        unsigned = (rows / scales).add_(128.5).to(torch.uint8)
        output = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, 128, self._laid_out(), self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        output = output.mul_(scales).to(x.dtype).view(*x.shape[:-1], len(self._scales))
        return output if self._bias is None else output + self._bias

    def _kept_rows(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() <= FEW_ROWS * x.shape[-1]:
            return few_rows_linear(x, self._weight, self._scales, self._bias, True)
        output = (F.linear(x.to(torch.bfloat16), self._weight.to(torch.bfloat16)) * self._scales).to(x.dtype)
        return output if self._bias is None else output + self._bias


class GroupsLinear(nn.Module):
    """A linear layer with narrow weights, a scale for each :data:`omni_torch.operations.few_rows.GROUP` inputs.

    Inputs are rounded to bfloat16 and sums are in float32. The output has the dtype of the input. Without a kernel of
    ``few_rows_linear`` the weight is widened at every product.
    """

    _weight: torch.Tensor
    _scales: torch.Tensor
    _bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """``weight``: ``[out, in]`` of any float dtype, ``in`` a multiple of the group."""
        super().__init__()
        values, scales = self.quantized(weight.detach())
        self.register_buffer("_weight", values)
        self.register_buffer("_scales", scales)
        self.register_buffer("_bias", None if bias is None else bias.detach())

    @staticmethod
    def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values and scales, in the layout of :func:`omni_torch.operations.few_rows.widened`; on the meta device their shapes."""
        raise NotImplementedError

    @classmethod
    def described(cls, out: int, size: int, *, zero_points: bool = False, bias: torch.Tensor | None = None) -> Self:
        """Return a layer without values, on the meta device, which a checkpoint fills: ``[out, size]``, with or without zero points."""
        assert not size % GROUP, "a group would be cut"
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        values, scales = cls.quantized(torch.empty(out, size, device="meta"))
        layer.register_buffer("_weight", values)
        layer.register_buffer("_scales", scales.new_empty(out, 2, size // GROUP) if zero_points else scales)
        layer.register_buffer("_bias", bias)
        return layer

    @property
    def matrix(self) -> Matrix:
        """The quantised weight."""
        return Matrix(self._weight, self._scales, self._bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if few_rows_linear.replaced(x.device.type, x.dtype):
            return few_rows_linear(x, self._weight, self._scales, self._bias)
        wide = widened(self._weight, self._scales, torch.bfloat16)
        output = F.linear(x.to(torch.bfloat16), wide).to(x.dtype)
        return output if self._bias is None else output + self._bias


class Int8GroupsLinear(GroupsLinear):
    """A linear layer with int8 weights and a scale for each :data:`omni_torch.operations.few_rows.GROUP` inputs."""

    @staticmethod
    def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return quantized_int8_groups(weight)


class CodedLinear(GroupsLinear):
    """A linear layer with bfloat16 weights in 12 bits, without loss; see :mod:`omni_torch.quantization.coded_weights`.

    Inputs are rounded to bfloat16 and sums are in float32. Without a kernel of ``few_rows_linear`` the weight is decoded at every product.
    """

    @staticmethod
    def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        coded = coded_bfloat16(weight)
        assert coded is not None, "see or_none()"
        return coded

    @classmethod
    def or_none(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> CodedLinear | None:
        """Return the layer; ``None`` if too many weights have rare exponents, so that it stays as it is."""
        if (coded := coded_bfloat16(weight.detach())) is None:
            return None
        layer = cls.described(*weight.shape, bias=None if bias is None else bias.detach())
        layer._weight, layer._scales = coded
        return layer


class Int4WeightLinear(GroupsLinear):
    """A linear layer with 4-bit weights and a scale for each :data:`omni_torch.operations.few_rows.GROUP` inputs."""

    @staticmethod
    def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return quantized_int4(weight)


class Int4Linear(Int4WeightLinear):
    """As :class:`Int4WeightLinear`, but where a kernel of ``few_rows_linear`` is installed, products of few rows have int8 inputs, each
    :data:`omni_torch.operations.few_rows.GROUP` of a row with its own scale, and are sums of integers.
    """

    @property
    def matrix(self) -> Matrix:
        """The quantised weight."""
        return Matrix(self._weight, self._scales, self._bias, int8_inputs=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() <= FEW_ROWS * x.shape[-1] and few_rows_linear.replaced(x.device.type, x.dtype):
            return few_rows_linear(x, self._weight, self._scales, self._bias, True)
        return super().forward(x)


@frozen
class Quantization:
    """A way to store weights."""

    layer: Callable[[torch.Tensor, torch.Tensor | None], nn.Module | None]
    needs: str
    """The required CPU features, for messages."""
    alignment: int
    """Input widths must be a multiple of this."""


QUANTIZATIONS = {
    "int8_weight_only": Quantization(Int8WeightLinear, "a CPU with AVX2 or AVX-512", ALIGNMENT),
    "int8_dynamic_activation_int8_weight": Quantization(Int8Linear, "a CPU with AVX2 or AVX-512 and VNNI", 1),
    "int8_weight_only_groups": Quantization(Int8GroupsLinear, "a CPU with AVX2 or AVX-512", GROUP),
    "int4_weight_only": Quantization(Int4WeightLinear, "a CPU with AVX2 or AVX-512", GROUP),
    "int8_dynamic_activation_int4_weight": Quantization(Int4Linear, "a CPU with AVX2 or AVX-512", GROUP),
    "bfloat16_lossless": Quantization(CodedLinear.or_none, "a CPU with AVX2 or AVX-512", UNIT),
}
"""The schemes of stages on a CPU, all but the last by their names in torchao and transformers; ``int8_weight_only_groups`` is
``int8_weight_only`` with their group size 32.
"""


def quantize_for(quantization: str | None, device: str) -> Pack:
    """Return the argument for :func:`omni_torch.quantization.packed_linear.pack_linears` that makes narrow weights, in a layout that
    is the same on every machine. ``None``: weights are kept.

    Args:
        quantization: one of :data:`QUANTIZATIONS` on a CPU, of :data:`omni_torch.quantization.scaled_linear.GPU_QUANTIZATIONS` on a GPU.
        device: where the network will compute. The weights may be elsewhere when they are rounded.

    Raises:
        ConfigError: the name is unknown or of the other kind of device, or this machine has no kernel for it.
    """
    if quantization is None:
        return keep
    if quantization not in QUANTIZATIONS and quantization not in GPU_QUANTIZATIONS:
        known = ", ".join(dict.fromkeys((*QUANTIZATIONS, *GPU_QUANTIZATIONS)))
        raise ConfigError(f"quantization: {quantization!r} is unknown; there are: {known}")
    on_cpu = torch.device(device).type == "cpu"
    if quantization not in (here := QUANTIZATIONS if on_cpu else GPU_QUANTIZATIONS):
        other, own = ("a GPU", "a CPU") if on_cpu else ("a CPU", "a GPU")
        raise ConfigError(
            f"quantization: {quantization!r} is for stages on {other}, but this one is on {device}; on {own} there are: {', '.join(here)}"
        )
    if not on_cpu:
        if (reason := missing(quantization, device)) is not None:
            raise ConfigError(f"quantization: {quantization!r} {reason}")
        return _only_large(GPU_QUANTIZATIONS[quantization], GPU_ALIGNMENT)
    chosen = QUANTIZATIONS[quantization]
    if not _works(chosen):
        raise ConfigError(f"quantization: {quantization!r} needs {chosen.needs}, and a PyTorch with kernels for it")
    return _only_large(chosen.layer, chosen.alignment)


def _only_large(layer: Pack, alignment: int) -> Pack:
    """Return what makes a layer of weights that are worth it, and whose inputs are a multiple of ``alignment``."""

    def quantize(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module | None:
        if weight.numel() < LEAST_VALUES or weight.shape[1] % alignment:
            return None
        return layer(weight, bias)

    return quantize


def pack_for(quantization: str | None, device: str) -> Pack:
    """Return the argument for :func:`omni_torch.quantization.packed_linear.pack_linears` that makes narrow weights, and lays out the
    others. Raises as :func:`quantize_for`.
    """
    quantize = quantize_for(quantization, device)
    if quantize is keep:
        return pack_decoder
    return lambda weight, bias: quantize(weight, bias) or pack_decoder(weight, bias)


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
        layer = quantization.layer(weight, None)
        if layer is None:
            return False
        made = layer(x)
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(made, F.linear(x, weight), rtol=2e-2)
