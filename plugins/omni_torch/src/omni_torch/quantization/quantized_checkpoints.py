"""Reads checkpoints whose linear layers are stored in words of 4 or 8 bits, as GPTQ's and AWQ's tools and llm-compressor write them.

Of each such layer ``X`` the tensor ``X.weight`` is made, with the values that the format defines; and, where groups fit, its values and
scales in the layout of :func:`omni_torch.operations.few_rows.widened`, ``X._weight`` and ``X._scales``, which are loaded as they are.

The compressed-tensors package gives the same floats, which a test compares. It reads neither GPTQ nor, since 0.19, reordered inputs, and
importing it takes 3 s and 120 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import torch
from attrs import frozen

from omni_core.api import ConfigError
from omni_torch.checkpoints.weights import Checkpoint, PartOf, whole
from omni_torch.operations.few_rows import GROUP, Groups, packed_int4
from omni_torch.quantization.quantization_config import (
    AWQ_PARTS,
    GPTQ_PARTS,
    PACKED_PARTS,
    Scheme,
    Schemes,
    find_schemes,
)
from omni_torch.quantization.scaled_checkpoints import ScaledCheckpoint

VALUES, SCALES = "._weight", "._scales"
"""Ends of the names of tensors in the layout of :func:`omni_torch.operations.few_rows.widened`."""

SHAPE = "weight_shape"
"""The tensor of outputs and inputs of a layer of llm-compressor's."""


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Return a checkpoint folder's tensors, quantised or not.

    Raises:
        ConfigError: as :class:`omni_torch.checkpoints.weights.Checkpoint`; or the way of quantisation is not implemented.
    """
    found = find_schemes(Path(folder))
    return Checkpoint(folder) if found is None else QuantizedCheckpoint(folder, found)


class QuantizedCheckpoint(ScaledCheckpoint):
    """A checkpoint some of whose layers are stored in words, with the tensors of
    :class:`omni_torch.quantization.quantization_config.Parts`."""

    def __init__(self, folder: str | Path, schemes: Schemes) -> None:
        super().__init__(folder, schemes.scaled)
        stored = {name.rpartition(".")[0] for name in self.shards if name.endswith((".qweight", ".weight_packed"))}
        self._layers = {layer: schemes.of(layer) for layer in stored}
        for layer, scheme in self._layers.items():
            shard = self.shard_of(f"{layer}.{scheme.parts.values}")
            self.shards |= {f"{layer}{end}": shard for end in (".weight", VALUES, SCALES)}

    def narrow(self, weights: Iterable[str]) -> Groups | None:
        layers = {name.removesuffix(".weight") for name in weights}
        if not layers or not layers <= self._layers.keys():
            return None
        schemes = {self._layers[layer] for layer in layers}
        bits = {each.bits for each in schemes}
        zeros = {layer in self._asymmetric for layer in layers}
        if len(bits) > 1 or len(zeros) > 1 or any(each.group % GROUP and each.group != -1 for each in schemes):
            return None
        if any(each.reordered for each in schemes) and not self._out_of_order.isdisjoint(layers):
            return None
        if bits == {8} and zeros == {True}:
            return None
        return Groups(bits.pop(), zero_points=zeros.pop())

    @cached_property
    def _out_of_order(self) -> set[str]:
        """The layers whose groups are not adjacent inputs."""
        groups = self._each("groups", self._layers)
        return {layer for layer, index in groups if not _is_adjacent(index, self._layers[layer].group)}

    @cached_property
    def _asymmetric(self) -> set[str]:
        """The layers with zero points other than half of the values, whatever their description says."""
        symmetric = {layer for layer, scheme in self._layers.items() if scheme.symmetric}
        found = self._layers.keys() - symmetric
        found |= {layer for layer, words in self._each("zeros", symmetric) if not _is_half(words, self._layers[layer])}
        return found

    def _each(self, part: str, layers: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a part of those layers that have it. Each shard is opened once."""
        by_shard: dict[Path, dict[str, str]] = {}
        for layer in layers:
            name = f"{layer}.{getattr(self._layers[layer].parts, part)}"
            if name in self.shards:
                by_shard.setdefault(self.shards[name], {})[name] = layer
        for names in by_shard.values():
            for name, tensor in self._stored(names).items():
                yield names[name], tensor

    def read(
        self, names: Iterable[str], part_of: PartOf = whole, dtype: torch.dtype | None = None
    ) -> dict[str, torch.Tensor]:
        wanted = list(dict.fromkeys(names))
        made = {name: name.rpartition(".")[0] for name in wanted if name.rpartition(".")[0] in self._layers}
        made = {name: layer for name, layer in made.items() if name.endswith((".weight", VALUES, SCALES))}
        tensors = super().read([name for name in wanted if name not in made], part_of, dtype)
        stored = self._stored(part for layer in dict.fromkeys(made.values()) for part in self._parts(layer))
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
                tensors[name] = unpacked.values() if name.endswith(VALUES) else unpacked.group_scales()
        return tensors

    def read_rows(self, name: str, rows: list[int]) -> torch.Tensor:
        return (
            self.read([name])[name][rows]
            if name.removesuffix(".weight") in self._layers
            else super().read_rows(name, rows)
        )

    def _parts(self, layer: str) -> list[str]:
        scheme = self._layers[layer]
        parts = scheme.parts
        needed = [parts.values, parts.scales, *([] if scheme.symmetric else [parts.zeros])]
        others = [f"{layer}.{each}" for each in (parts.zeros, parts.groups, SHAPE)]
        return list(
            dict.fromkeys([*(f"{layer}.{each}" for each in needed), *(each for each in others if each in self.shards)])
        )

    def _unpacked(self, layer: str, stored: dict[str, torch.Tensor]) -> _Layer:
        scheme = self._layers[layer]
        parts, bits = scheme.parts, scheme.bits
        words, scales = stored[f"{layer}.{parts.values}"], stored[f"{layer}.{parts.scales}"]
        self._expect(layer, parts.values, words, words.dim() == 2 and words.dtype == torch.int32, "a matrix of int32")
        values = _columns(words.T if parts == GPTQ_PARTS else words, scheme.order, bits)
        values = values.T if parts == AWQ_PARTS else values
        if parts == PACKED_PARTS:
            values = values[:, : self._inputs(layer, words, stored)]
        out, size = (values := values.contiguous()).shape
        group = size if scheme.group == -1 else scheme.group
        groups = -(-size // group)
        outputs_first = parts == PACKED_PARTS
        grid = [out, groups] if outputs_first else [groups, out]
        if outputs_first and scheme.group == -1 and scales.numel() in (1, out):
            scales = scales.reshape(-1, 1).expand(out, 1)
        self._expect(
            layer, parts.scales, scales, [*scales.shape] == grid and scales.is_floating_point(), f"floats {grid}"
        )
        zeros = None
        points = stored.get(f"{layer}.{parts.zeros}")
        if points is not None and not (scheme.symmetric and _is_half(points, scheme)):
            zeros = self._zeros(layer, points, groups, out)
        index = stored.get(f"{layer}.{parts.groups}")
        if index is not None:
            lowest = -1 if outputs_first else 0
            fits = tuple(index.shape) == (size,) and not index.is_floating_point()
            fits = fits and lowest <= int(index.min()) and int(index.max()) < groups
            self._expect(layer, str(parts.groups), index, fits, f"[{size}] of groups from 0 to {groups - 1}")
            if _is_adjacent(index, scheme.group):
                index = None
            elif not scheme.reordered:
                raise ConfigError(
                    f"{self.shard_of(f'{layer}.{parts.groups}')}: the tensor {f'{layer}.{parts.groups}'!r} reorders inputs, but "
                    "config.json says desc_act is false; set quantization_config.desc_act to true"
                )
        return _Layer(bits, values, (scales if outputs_first else scales.T).float(), zeros, group, index)

    def _inputs(self, layer: str, words: torch.Tensor, stored: dict[str, torch.Tensor]) -> int:
        """Return the inputs of a layer of llm-compressor's, whose last word may be filled in part."""
        per_word = self._layers[layer].per_word
        given = stored.get(f"{layer}.{SHAPE}")
        if given is None:
            return per_word * words.shape[1]
        shape = given.tolist() if given.dtype in (torch.int64, torch.int32) else None
        fits = isinstance(shape, list) and len(shape) == 2 and shape[0] == len(words)
        fits = fits and shape is not None and -(-shape[1] // per_word) == words.shape[1]
        self._expect(layer, SHAPE, given, fits, f"[{len(words)}, inputs in {words.shape[1]} words of {per_word}]")
        assert shape is not None
        return int(shape[1])

    def _zeros(self, layer: str, stored: torch.Tensor, groups: int, out: int) -> torch.Tensor:
        """Return the zero points of a layer, ``[out, groups]``, from 0 on."""
        scheme, words = self._layers[layer], -(-out // self._layers[layer].per_word)
        outputs_first = scheme.parts == PACKED_PARTS
        if outputs_first and stored.dtype == torch.int8:  # of versions that packed values alone
            self._expect(layer, scheme.parts.zeros, stored, [*stored.shape] == [out, groups], f"[{out}, {groups}]")
            return stored.int() + (1 << (scheme.bits - 1))
        shape = [words, groups] if outputs_first else [groups, words]
        fits = stored.dtype == torch.int32 and [*stored.shape] == shape
        self._expect(layer, scheme.parts.zeros, stored, fits, f"int32 {shape}")
        zeros = _columns(stored.T if outputs_first else stored, scheme.order, scheme.bits)[:, :out].T
        return (zeros + scheme.offset) & ((1 << scheme.bits) - 1)

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

    def group_scales(self) -> torch.Tensor:
        count = self.stored.shape[1] // GROUP
        scales = _spread(self.scales, self.group, count).to(torch.bfloat16)
        if self.zeros is None:
            return scales
        return torch.stack([scales, _spread(self.zeros, self.group, count).to(torch.bfloat16)], 1)


def _spread(scales: torch.Tensor, group: int, count: int) -> torch.Tensor:
    return scales.repeat_interleave(group // GROUP, 1)[:, :count].contiguous()


def _adjacent(size: int, group: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.int32) // (size if group == -1 else group)


def _is_adjacent(index: torch.Tensor, group: int) -> bool:
    """Return whether groups are adjacent inputs. Numbers of -1 are those of a file that has reserved them and not used them."""
    return bool((index == -1).any()) or torch.equal(index.int(), _adjacent(len(index), group))


def _is_half(zeros: torch.Tensor, scheme: Scheme) -> bool:
    """Return whether stored zero points are half of the values. Of GPTQ's tools some store one less and some do not, in either version."""
    if zeros.dtype == torch.int8 or not zeros.numel():
        return not bool(zeros.any())
    half, step = 1 << (scheme.bits - 1), sum(1 << place for place in range(0, 32, scheme.bits))
    allowed = (half, half - 1) if scheme.parts == GPTQ_PARTS else (half,)
    words = [torch.tensor(each * step, dtype=torch.int64) for each in allowed]
    return any(bool(((zeros.long() & 0xFFFFFFFF) == each).all()) for each in words)


def _columns(words: torch.Tensor, order: tuple[int, ...], bits: int) -> torch.Tensor:
    """Return the values of words that hold columns in ``order``: ``[n, m]`` to ``[n, 32 / bits * m]``."""
    shifts = torch.tensor([bits * order.index(column) for column in range(len(order))], dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(1)
