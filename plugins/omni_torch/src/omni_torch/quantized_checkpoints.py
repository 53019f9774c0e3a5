"""Reads checkpoints whose linear layers are stored in 4 bits as GPTQ's and AWQ's tools write them, or in 8 as GPTQ's do.

Of each such layer ``X`` the tensor ``X.weight`` is made, with the values that the format defines; and, where groups fit, its values and
scales in the layout of :func:`omni_torch.few_rows.widened`, ``X._weight`` and ``X._scales``, which are loaded as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from omni_core.errors import ConfigError
from omni_torch.checkpoints import read_json
from omni_torch.few_rows import GROUP, Groups, packed_int4
from omni_torch.scaled_checkpoints import METHODS, ScaledCheckpoint, parse_scaled, refused
from omni_torch.weights import Checkpoint, PartOf, whole

VALUES, SCALES = "._weight", "._scales"
"""Ends of the names of tensors in the layout of :func:`omni_torch.few_rows.widened`."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of eight, that each 4 bits of an AWQ word, an int32, belong to, lowest first."""


@frozen
class Scheme:
    """The way in which a checkpoint's layers are stored.

    Attributes:
        awq: words hold outputs, not inputs. group: inputs that share a scale; -1: all. symmetric: every zero point is half of the values.
        offset: what is added to stored zero points. reordered: groups need not be adjacent inputs. bits: of a value, 4 or 8.
    """

    awq: bool
    group: int
    symmetric: bool
    offset: int = 0
    reordered: bool = False
    bits: int = 4

    @property
    def per_word(self) -> int:
        """Values in an int32."""
        return 32 // self.bits

    @property
    def order(self) -> tuple[int, ...]:
        """The column that each value of a word of zero points, or of AWQ, belongs to, lowest bits first."""
        return AWQ_ORDER if self.awq else tuple(range(self.per_word))


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Return a checkpoint folder's tensors, quantised or not.

    Raises:
        ConfigError: as :class:`omni_torch.weights.Checkpoint`; or the way of quantisation is not implemented.
    """
    config = Path(folder) / "config.json"
    raw = read_json(config) if config.is_file() else {}
    section = raw.get("quantization_config")
    if section is None:
        return Checkpoint(folder)
    if not isinstance(section, dict):
        raise ConfigError(f"{config}: quantization_config must be an object, is a {type(section).__name__}")
    if str(section.get("quant_method")).lower() in METHODS:
        return ScaledCheckpoint(folder, parse_scaled(section, str(config)))
    return QuantizedCheckpoint(folder, parse_scheme(section, str(config)))


def parse_scheme(section: dict[str, Any], where: str) -> Scheme:
    """Read ``quantization_config``.

    Raises:
        ConfigError: the method or one of its options is not implemented; the message names the file, the field and what is.
    """

    def refuse(field: str, allowed: str) -> ConfigError:
        return refused(where, field, section.get(field), allowed)

    method = str(section.get("quant_method")).lower()
    packing = str(section.get("packing_format", "auto_round:auto_gptq")).lower() if method == "auto-round" else method
    kind = packing.rpartition(":")[2].removeprefix("auto_")
    if method not in ("gptq", "awq", "auto-round"):
        advice = f"gptq, awq, auto-round, {', '.join(METHODS)}. Use a checkpoint in bfloat16 and the stage's `quantization` instead"
        raise refuse("quant_method", advice)
    if kind not in ("gptq", "awq"):
        raise refuse("packing_format", "auto_round:auto_gptq, auto_round:auto_awq")
    bits = section.get("bits")
    if not isinstance(bits, int) or bits not in ((4,) if kind == "awq" else (4, 8)):
        raise refuse("bits", "4" if kind == "awq" else "4, 8")
    group = section.get("group_size", 128)
    if isinstance(group, bool) or not isinstance(group, int) or not (group == -1 or group > 0):
        raise refuse("group_size", "-1 or a number of inputs, such as 128")
    if kind == "awq":
        if str(section.get("version", "gemm")).lower() != "gemm":
            raise refuse("version", "gemm")
        return Scheme(True, group, section.get("zero_point", not section.get("sym", False)) is False)
    form = section.get("checkpoint_format", section.get("format", "gptq"))
    if form not in ("gptq", "gptq_v2"):
        raise refuse("checkpoint_format", "gptq, gptq_v2")
    reordered = section.get("desc_act", False) is True
    # Symmetric checkpoints have the zero point 8 (of 8 bits 128), whichever of that and one less their tool has stored.
    return Scheme(False, group, section.get("sym", True) is True, 1 if form == "gptq" else 0, reordered, bits)


class QuantizedCheckpoint(Checkpoint):
    """A checkpoint with tensors ``X.qweight``, ``X.qzeros``, ``X.scales`` and, of GPTQ, ``X.g_idx``."""

    def __init__(self, folder: str | Path, scheme: Scheme) -> None:
        super().__init__(folder)
        self.scheme = scheme
        self._layers = {name.removesuffix(".qweight") for name in self.shards if name.endswith(".qweight")}
        for layer in self._layers:
            shard = self.shards[f"{layer}.qweight"]
            self.shards |= {f"{layer}{end}": shard for end in (".weight", VALUES, SCALES)}

    def narrow(self, weights: Iterable[str]) -> Groups | None:
        layers = [name.removesuffix(".weight") for name in weights]
        if not all(layer in self._layers for layer in layers) or (
            self.scheme.group % GROUP and self.scheme.group != -1
        ):
            return None
        if self.scheme.reordered and not self._out_of_order.isdisjoint(layers):
            return None
        if self.scheme.bits == 8 and not self.scheme.symmetric:
            return None
        return Groups(self.scheme.bits, zero_points=not self.scheme.symmetric)

    @cached_property
    def _out_of_order(self) -> set[str]:
        """The layers whose groups are not adjacent inputs. Each shard is opened once."""
        by_shard: dict[Path, list[str]] = {}
        for name in (f"{layer}.g_idx" for layer in self._layers):
            if name in self.shards:
                by_shard.setdefault(self.shards[name], []).append(name)
        found = set()
        for names in by_shard.values():
            for name, index in super().read(names).items():
                if not torch.equal(index.int(), _adjacent(len(index), self.scheme.group)):
                    found.add(name.removesuffix(".g_idx"))
        return found

    def read(
        self, names: Iterable[str], part_of: PartOf = whole, dtype: torch.dtype | None = None
    ) -> dict[str, torch.Tensor]:
        wanted = list(dict.fromkeys(names))
        made = {name: name.rpartition(".")[0] for name in wanted if name.rpartition(".")[0] in self._layers}
        made = {name: layer for name, layer in made.items() if name.endswith((".weight", VALUES, SCALES))}
        tensors = super().read([name for name in wanted if name not in made], part_of)
        stored = super().read(part for layer in dict.fromkeys(made.values()) for part in self._parts(layer))
        newest: tuple[str, _Layer] | None = None
        for name, layer in sorted(made.items(), key=lambda each: each[1]):  # those of one layer after one another
            if newest is None or newest[0] != layer:
                newest = layer, self._unpacked(layer, stored)
            unpacked = newest[1]
            if name.endswith(".weight"):
                tensor = unpacked.dequantized().to(dtype or torch.float32)
                part = part_of(name)
                tensors[name] = tensor if part is None else tensor[part.bounds(name, tuple(tensor.shape))].contiguous()
            else:
                tensors[name] = (
                    unpacked.values() if name.endswith(VALUES) else unpacked.group_scales(self.scheme.symmetric)
                )
        return tensors

    def _parts(self, layer: str) -> list[str]:
        needed = ["qweight", "scales", *([] if self.scheme.symmetric else ["qzeros"])]
        index = [f"{layer}.g_idx"] if f"{layer}.g_idx" in self.shards and not self.scheme.awq else []
        return [*(f"{layer}.{each}" for each in needed), *index]

    def _unpacked(self, layer: str, stored: dict[str, torch.Tensor]) -> _Layer:
        words, scales = stored[f"{layer}.qweight"], stored[f"{layer}.scales"]
        axis = 1 if self.scheme.awq else 0
        self._expect(layer, "qweight", words, words.dim() == 2 and words.dtype == torch.int32, "a matrix of int32")
        per_word, bits = self.scheme.per_word, self.scheme.bits
        size, out = (
            (len(words), per_word * words.shape[1]) if self.scheme.awq else (per_word * len(words), words.shape[1])
        )
        group = size if self.scheme.group == -1 else self.scheme.group
        groups = -(-size // group)
        self._expect(layer, "scales", scales, tuple(scales.shape) == (groups, out), f"[{groups}, {out}]")
        values = (_columns(words, self.scheme.order, bits) if axis else _rows(words, bits)).T.contiguous()
        zeros = None
        if not self.scheme.symmetric:
            packed = stored[f"{layer}.qzeros"]
            self._expect(
                layer,
                "qzeros",
                packed,
                tuple(packed.shape) == (groups, -(-out // per_word)),
                f"[{groups}, {-(-out // per_word)}]",
            )
            zeros = _columns(packed, self.scheme.order, bits)[:, :out]
            zeros = ((zeros + self.scheme.offset) & ((1 << bits) - 1)).T
        index = stored.get(f"{layer}.g_idx")
        if index is not None:
            self._expect(
                layer,
                "g_idx",
                index,
                tuple(index.shape) == (size,) and int(index.max()) < groups,
                f"[{size}] of groups below {groups}",
            )
            if torch.equal(index.int(), _adjacent(size, group)):
                index = None
            elif not self.scheme.reordered:
                raise ConfigError(
                    f"{self.shard_of(f'{layer}.g_idx')}: the tensor {layer + '.g_idx'!r} reorders inputs, but config.json says "
                    "desc_act is false; set quantization_config.desc_act to true"
                )
        return _Layer(bits, values, scales.T.float(), zeros, group, index)

    def _expect(self, layer: str, part: str, tensor: torch.Tensor, holds: bool, wanted: str) -> None:
        if not holds:
            name = f"{layer}.{part}"
            raise ConfigError(
                f"{self.shard_of(name)}: the tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, quantization_config asks for "
                f"{wanted}; compare bits and group_size with the tool that wrote it, or download the checkpoint again"
            )


@frozen(eq=False)
class _Layer:
    """Values ``[out, in]`` of 4 or 8 bits from 0 on, float32 scales ``[out, groups]``, zero points of that shape, and each input's group if
    they are not adjacent.
    """

    bits: int
    stored: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group: int
    index: torch.Tensor | None

    def dequantized(self) -> torch.Tensor:
        size = self.stored.shape[1]
        index = _adjacent(size, self.group) if self.index is None else self.index
        scales = self.scales.index_select(1, index)
        zeros = 1 << (self.bits - 1) if self.zeros is None else self.zeros.index_select(1, index)
        return (self.stored - zeros).float() * scales

    def values(self) -> torch.Tensor:
        return packed_int4(self.stored.to(torch.uint8)) if self.bits == 4 else (self.stored - 128).to(torch.int8)

    def group_scales(self, symmetric: bool) -> torch.Tensor:
        count = self.stored.shape[1] // GROUP
        scales = _spread(self.scales, self.group, count).to(torch.bfloat16)
        if self.zeros is None:
            return scales
        return torch.stack([scales, _spread(self.zeros, self.group, count).to(torch.bfloat16)], 1)


def _spread(scales: torch.Tensor, group: int, count: int) -> torch.Tensor:
    return scales.repeat_interleave(group // GROUP, 1)[:, :count].contiguous()


def _adjacent(size: int, group: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.int32) // (size if group == -1 else group)


def _rows(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the values of words that hold adjacent rows: ``[n, m]`` to ``[32 / bits * n, m]``."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32).view(1, -1, 1)
    return ((words.unsqueeze(1) >> shifts) & ((1 << bits) - 1)).flatten(0, 1)


def _columns(words: torch.Tensor, order: tuple[int, ...], bits: int) -> torch.Tensor:
    """Return the values of words that hold columns in ``order``: ``[n, m]`` to ``[n, 32 / bits * m]``."""
    shifts = torch.tensor([bits * order.index(column) for column in range(len(order))], dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(1)
