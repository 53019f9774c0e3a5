"""Reads checkpoints whose linear layers are stored in 8 bits with scales: fp8 in blocks as Qwen and DeepSeek publish them, or per output or
tensor as llm-compressor writes them.

Of each such layer ``X`` the tensor ``X.weight`` has the values that the format defines, in the dtype that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch

from omni_core.api import ConfigError
from omni_torch.checkpoints.weights import Checkpoint, PartOf, is_scaled, whole
from omni_torch.quantization.quantization_config import ScaledScheme

SCALES = (".weight_scale_inv", ".weight_scale")
"""Ends of the names of scales."""

INVERSE = ".weight_scale_inv"
"""The end of names under which some tools store divisors, and others factors."""

STORED = (torch.float8_e4m3fn, torch.int8)
"""The dtypes of values."""


class ScaledCheckpoint(Checkpoint):
    """A checkpoint with tensors ``X.weight`` of 8 bits and ``X.weight_scale_inv`` or ``X.weight_scale``."""

    def __init__(self, folder: Any, scheme: ScaledScheme) -> None:
        super().__init__(folder)
        self.scheme = scheme

    def read(
        self, names: Iterable[str], part_of: PartOf = whole, dtype: torch.dtype | None = None
    ) -> dict[str, torch.Tensor]:
        wanted = list(dict.fromkeys(names))
        scales = {name: scale for name in wanted if (scale := self._scale_of(name)) is not None}
        tensors = super()._stored([name for name in wanted if name not in scales], part_of)
        for name, tensor in tensors.items():
            if is_scaled(tensor.dtype):
                raise self._wrong(name, tensor, f"scales, {' or '.join(SCALES)} in place of .weight, which are missing")
        zeros = [zero for name in scales if (zero := name.removesuffix("weight") + "weight_zero_point") in self.shards]
        found = super()._stored(dict.fromkeys((*scales, *scales.values(), *zeros)))
        for zero in zeros:
            if found[zero].any():
                raise self._wrong(zero, found[zero], "no zero points (symmetric)")
        for name, scale in scales.items():
            tensor = self._dequantized(name, found.pop(name), scale, found[scale]).to(dtype or torch.float32)
            part = part_of(name)
            tensors[name] = tensor if part is None else tensor[part.bounds(name, tuple(tensor.shape))].contiguous()
        return tensors

    def read_rows(self, name: str, rows: list[int]) -> torch.Tensor:
        return super().read_rows(name, rows) if self._scale_of(name) is None else self.read([name])[name][rows]

    def _scale_of(self, name: str) -> str | None:
        """Return the name of a weight's scales, if it has some."""
        layer = name.removesuffix(".weight")
        return next((f"{layer}{end}" for end in SCALES if layer != name and f"{layer}{end}" in self.shards), None)

    def _dequantized(self, name: str, values: torch.Tensor, scale: str, scales: torch.Tensor) -> torch.Tensor:
        """Return the values times their scales, in float32."""
        if values.dtype not in STORED or values.dim() != 2:
            raise self._wrong(name, values, "a matrix of float8_e4m3fn or int8")
        if not scales.is_floating_point() or not bool(scales.isfinite().all()):
            raise self._wrong(scale, scales, "finite numbers")
        factors = scales.float()
        used = factors != 0
        if scale.endswith(INVERSE) and bool(used.any()) and factors[used].abs().median() > 1:
            # Divisors: a factor above 1 would be that of weights above 448. The name says divisor, published models mostly have factors.
            factors = torch.where(used, factors.reciprocal(), 0.0)
        if not bool(used.all()) and bool(self._times(scale, values, (~used).float()).any()):
            raise self._wrong(scale, scales, "numbers other than 0 for values other than 0")
        return self._times(scale, values, factors)

    def _times(self, scale: str, values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        (out, size), block = values.shape, self.scheme.block
        if factors.numel() == 1:
            return values.float() * factors.view(())
        if factors.shape in ((out,), (out, 1)):
            return values.float() * factors.view(out, 1)
        if block is None:
            raise self._wrong(scale, factors, f"[], [{out}] or [{out}, 1]")
        grid = [-(-length // each) for length, each in zip((out, size), block, strict=True)]
        if list(factors.shape) != grid:
            raise self._wrong(scale, factors, f"{grid}, blocks of {list(block)}")
        tensor = values.float()
        for number, row in enumerate(factors):  # spread over all values, they would be as large as the weight
            tensor[number * block[0] : (number + 1) * block[0]] *= row.repeat_interleave(block[1])[:size]
        return tensor

    def _wrong(self, name: str, tensor: torch.Tensor, wanted: str) -> ConfigError:
        shown = f"{tensor.dtype} {list(tensor.shape)}" + (f" of {tensor.tolist()}" if prod(tensor.shape) <= 4 else "")
        return ConfigError(
            f"{self.shard_of(name)}: the tensor {name!r} is {shown}, quantization_config asks for {wanted}; compare it with the tool that "
            "wrote it, or download the checkpoint again"
        )
