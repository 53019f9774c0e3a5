"""Reads the headers of safetensors files: name, dtype and shape of every tensor, none of the data. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import frozen

from omni_core.api import ConfigError
from omni_torch.checkpoints.folders import checked_file, read_json

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
"""Files of a checkpoint: the index of several files of weights, and the file of one that has no other."""

LARGEST_HEADER = 100_000_000
"""Bytes: the limit that the format sets."""

_ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""The names of the dtypes that networks compute in, by the format's."""


@frozen
class TensorInfo:
    """A tensor of a checkpoint.

    Attributes:
        dtype: as the format names it, such as ``BF16``.
        values: their number.
        per_word: of a layer in words of 4 or 8 bits, the weights that each value holds: none in scales and zero points.
    """

    dtype: str
    values: int
    per_word: int = 1

    @property
    def unpacked(self) -> int:
        """Return the number of values that are made of it where words are not kept."""
        return self.values * self.per_word

    @property
    def nbytes(self) -> int:
        """Return its size on disk."""
        return self.values * _ITEM_BYTES.get(self.dtype, 1)


Tensors = Mapping[str, TensorInfo]
"""The tensors of a checkpoint by name."""


def parse_header(raw: Any, where: str) -> dict[str, TensorInfo]:
    """Return the tensors that a file's header lists.

    Raises:
        ConfigError: it is no header of the format.
    """
    try:
        return {
            name: TensorInfo(str(each["dtype"]), prod(map(int, each["shape"])))
            for name, each in raw.items()
            if name != "__metadata__"
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} cannot be read: its header is not that of a safetensors file ({error!r})") from None


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Read the header of one file.

    Raises:
        ConfigError: the file is missing, or is no safetensors file.
    """
    try:
        with checked_file(path, kind="the shard").open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > LARGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            return parse_header(json.loads(file.read(length)), str(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"the shard {path} cannot be read: {error}") from error


def shards(folder: Path) -> list[str]:
    """Return the names of a checkpoint's safetensors files.

    Raises:
        ConfigError: there are no weights, or the index is invalid.
    """
    if (folder / INDEX).exists():
        return sorted(set(weight_map(read_json(folder / INDEX), str(folder / INDEX)).values()))
    if (folder / SINGLE).exists():
        return [SINGLE]
    raise ConfigError(f"{folder} holds no weights: neither {INDEX} nor {SINGLE}")


def weight_map(index: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the files that an index names, by their tensors.

    Raises:
        ConfigError: it is no index, or a file lies outside of the checkpoint's folder; links in the folder may lead anywhere.
    """
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(each, str) for each in names.values()):
        raise ConfigError(f"{where} cannot be read: its weight_map must say which file holds each tensor")
    for name in set(names.values()):
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ConfigError(
                f"{where} names the file {name!r}, which is not in the checkpoint's folder; download the checkpoint again"
            )
    return names


def read_headers(folder: str | Path) -> dict[str, TensorInfo]:
    """Read the headers of all files of a checkpoint folder. Raises as :func:`shards` and :func:`read_header`."""
    found: dict[str, TensorInfo] = {}
    for name in shards(Path(folder)):
        found |= read_header(Path(folder) / name)
    return found


def main_dtype(tensors: Iterable[TensorInfo]) -> str | None:
    """Return the dtype that most of the values have, as torch names it; ``None`` if networks do not compute in it. Integers, which are
    indices or packed values, and floats of 8 bits, which are stored with scales, do not count.
    """
    counts: dict[str, int] = {}
    for each in tensors:
        if each.dtype.startswith(("I", "U", "F8")):
            continue
        counts[each.dtype] = counts.get(each.dtype, 0) + each.values
    return DTYPES.get(max(counts, key=counts.__getitem__)) if counts else None
