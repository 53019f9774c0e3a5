"""Reads checkpoints whose linear layers are stored in 8 bits with scales: fp8 in blocks as Qwen and DeepSeek publish them, or per output or
tensor as llm-compressor writes them.

Of each such layer ``X`` the tensor ``X.weight`` has the values that the format defines, in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from attrs import frozen

from omni_core.errors import ConfigError
from omni_torch.weights import Checkpoint, PartOf, whole

METHODS = ("fp8", "compressed-tensors")
"""The names of ``quant_method`` that are read here."""

SCALES = (".weight_scale_inv", ".weight_scale")
"""Ends of the names of scales."""

INVERSE = ".weight_scale_inv"
"""The end of names under which some tools store divisors, and others factors."""

STORED = (torch.float8_e4m3fn, torch.int8)
"""The dtypes of values."""

Block = tuple[int, int]
"""Outputs and inputs that share a scale."""


@frozen
class ScaledScheme:
    """The way in which a checkpoint's layers are stored. ``block``: of layers whose scales are matrices, if there are such layers."""

    block: Block | None


def parse_scaled(section: dict[str, Any], where: str) -> ScaledScheme:
    """Read ``quantization_config`` of one of :data:`METHODS`.

    Raises:
        ConfigError: an option is not implemented; the message names the file, the field and what is.
    """
    if str(section.get("quant_method")).lower() == "fp8":
        if str(section.get("fmt", "e4m3")).lower() not in ("e4m3", "float8_e4m3fn"):
            raise _refuse(where, "fmt", section.get("fmt"), "e4m3")
        return ScaledScheme(_block(section.get("weight_block_size"), where, "weight_block_size"))
    blocks = set()
    groups = section.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _refuse(where, "config_groups", groups, "an object of groups with `weights`")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        field = f"config_groups.{name}.weights"
        if not isinstance(weights, dict) or weights.get("num_bits") != 8:
            advice = (
                "num_bits 8, of type float or int. Use a checkpoint in bfloat16 and the stage's `quantization` instead"
            )
            raise _refuse(where, field, weights, advice)
        if weights.get("symmetric", True) is not True:
            raise _refuse(where, f"{field}.symmetric", weights["symmetric"], "true")
        strategy = weights.get("strategy", "tensor")
        if strategy not in ("tensor", "channel", "block"):
            raise _refuse(where, f"{field}.strategy", strategy, "tensor, channel, block")
        if strategy == "block":
            blocks.add(_block(weights.get("block_structure"), where, f"{field}.block_structure"))
    if len(blocks) > 1:
        raise _refuse(where, "config_groups", sorted(map(str, blocks)), "blocks of one shape")
    return ScaledScheme(blocks.pop() if blocks else None)


def _block(given: Any, where: str, field: str) -> Block | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or not all(type(each) is int and each > 0 for each in given):
        raise _refuse(where, field, given, "a pair of positive numbers, such as [128, 128]")
    return given[0], given[1]


def _refuse(where: str, field: str, found: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{where}: quantization_config.{field} is {found!r}, which cannot be read; there are: {allowed}")


class ScaledCheckpoint(Checkpoint):
    """A checkpoint with tensors ``X.weight`` of 8 bits and ``X.weight_scale_inv`` or ``X.weight_scale``."""

    def __init__(self, folder: Any, scheme: ScaledScheme) -> None:
        super().__init__(folder)
        self.scheme = scheme

    def read(self, names: Iterable[str], part_of: PartOf = whole) -> dict[str, torch.Tensor]:
        wanted = list(dict.fromkeys(names))
        scales = {name: scale for name in wanted if (scale := self._scale_of(name)) is not None}
        tensors = super().read([name for name in wanted if name not in scales], part_of)
        for name, tensor in tensors.items():
            if tensor.dtype == torch.float8_e4m3fn:
                raise self._wrong(name, tensor, f"scales, {' or '.join(SCALES)} in place of .weight, which are missing")
        found = super().read(dict.fromkeys((*scales, *scales.values())))
        for name, scale in scales.items():
            tensor, part = self._dequantized(name, found[name], scale, found[scale]), part_of(name)
            tensors[name] = tensor if part is None else tensor[part.bounds(name, tuple(tensor.shape))].contiguous()
            del found[name]
        return tensors

    def _scale_of(self, name: str) -> str | None:
        """Return the name of a weight's scales, if it has some."""
        layer = name.removesuffix(".weight")
        return next((f"{layer}{end}" for end in SCALES if layer != name and f"{layer}{end}" in self.shards), None)

    def _dequantized(self, name: str, values: torch.Tensor, scale: str, scales: torch.Tensor) -> torch.Tensor:
        if values.dtype not in STORED or values.dim() != 2:
            raise self._wrong(name, values, "a matrix of float8_e4m3fn or int8")
        if not scales.is_floating_point() or not bool((scales.isfinite() & (scales != 0)).all()):
            raise self._wrong(scale, scales, "finite numbers other than 0")
        out, size = values.shape
        wide = scales.float()
        if scale.endswith(INVERSE) and wide.abs().median() > 1:
            # Divisors: a factor above 1 would be that of weights above 448. The name says divisor, published models mostly have factors.
            wide = wide.reciprocal()
        if scales.numel() == 1:
            return values.float() * wide.view(())
        if scales.numel() == out and scales.shape in ((out,), (out, 1)):
            return values.float() * wide.view(out, 1)
        if self.scheme.block is None:
            raise self._wrong(scale, scales, f"[], [{out}] or [{out}, 1]")
        grid = tuple(-(-length // each) for length, each in zip((out, size), self.scheme.block, strict=True))
        if tuple(scales.shape) != grid:
            raise self._wrong(scale, scales, f"{list(grid)}, blocks of {list(self.scheme.block)}")
        tensor = values.float()
        for number, row in enumerate(wide):  # spread over all values, scales would be as large as the weight
            part = slice(number * self.scheme.block[0], (number + 1) * self.scheme.block[0])
            tensor[part] *= row.repeat_interleave(self.scheme.block[1])[:size]
        return tensor

    def _wrong(self, name: str, tensor: torch.Tensor, wanted: str) -> ConfigError:
        shown = f"{tensor.dtype} {list(tensor.shape)}" + (f" of {tensor.tolist()}" if prod(tensor.shape) <= 4 else "")
        return ConfigError(
            f"{self.shard_of(name)}: the tensor {name!r} is {shown}, quantization_config asks for {wanted}; compare it with the tool that "
            "wrote it, or download the checkpoint again"
        )
