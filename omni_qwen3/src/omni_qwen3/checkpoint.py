"""Reading weights: find a checkpoint, and load into a module the tensors under one prefix of its safetensors shards.

A stage reads only the shards, and of those only the tensors, that its own network needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from omni_core.errors import ConfigError
from omni_core.model_runner.tensor_parallel import Part

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"

FUSED = {
    "qkv_proj.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
    "gate_up_proj.weight": ("gate_proj.weight", "up_proj.weight"),
}
"""Our fused parameters, and the on-disk tensors that are stacked (first dimension) to make each."""


PartOf = Callable[[str], "Part | None"]
"""Which part of an on-disk tensor is wanted, by its name; ``None``: all of it."""


def whole(name: str) -> None:
    """A :data:`PartOf`: every tensor in full."""


class Checkpoint:
    """The tensors of a checkpoint folder by their on-disk names.

    Raises:
        ConfigError: there are no weights, the index is broken, or a shard it names is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.shards = self._read_index()

    def _read_index(self) -> dict[str, Path]:
        index, single = self.folder / _INDEX, self.folder / _SINGLE
        if index.is_file():
            try:
                names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            except (ValueError, KeyError) as error:
                raise ConfigError(f"{index} cannot be read: {error!r}") from error
            return {name: self.folder / shard for name, shard in names.items()}
        if single.is_file():
            with safe_open(single, "pt") as shard:
                return dict.fromkeys(shard.keys(), single)
        raise ConfigError(f"{self.folder} holds no weights: neither {_INDEX} nor {_SINGLE}")

    def names(self, prefix: str) -> set[str]:
        return {name for name in self.shards if name.startswith(prefix)}

    def read(self, names: Iterable[str], part_of: PartOf = whole) -> dict[str, torch.Tensor]:
        """Tensors by name, or the parts of them that ``part_of`` says; each shard is opened once, and no more of it is read.

        Raises:
            ConfigError: a tensor or a shard is missing; the message names both.
        """
        by_shard: dict[Path, list[str]] = {}
        for name in names:
            if name not in self.shards:
                raise ConfigError(f"the checkpoint {self.folder} lacks the tensor {name!r}")
            by_shard.setdefault(self.shards[name], []).append(name)
        tensors = {}
        for path, wanted in by_shard.items():
            with _open(path) as shard:
                present = set(shard.keys())
                for name in wanted:
                    if name not in present:
                        raise ConfigError(f"the shard {path} lacks the tensor {name!r}, which {_INDEX} says it has")
                    tensors[name] = _read(shard, name, part_of(name))
        return tensors

    def read_rows(self, name: str, rows: list[int]) -> torch.Tensor:
        """Some rows of a matrix, without reading the rest: ``[len(rows), ...]``."""
        if name not in self.shards:
            raise ConfigError(f"the checkpoint {self.folder} lacks the tensor {name!r}")
        with _open(self.shards[name]) as shard:
            matrix = shard.get_slice(name)
            return torch.cat([matrix[row : row + 1] for row in rows])


def _read(shard: Any, name: str, part: Part | None) -> torch.Tensor:
    if part is None:
        tensor: torch.Tensor = shard.get_tensor(name)
        return tensor
    rows = shard.get_slice(name)
    sliced: torch.Tensor = rows[part.bounds(name, tuple(rows.get_shape()))]
    return sliced.contiguous()


def _open(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except FileNotFoundError:
        raise ConfigError(f"the shard {path} is missing; download the checkpoint again") from None
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"the shard {path} cannot be read: {error}") from error


def sources(name: str, shape: torch.Size) -> list[str]:
    """The on-disk tensors (below the prefix) that make up one of our parameters."""
    if name.endswith(".experts.gate_up_proj"):
        base = name.removesuffix("gate_up_proj")
        return [f"{base}{e}.{part}.weight" for e in range(shape[0]) for part in ("gate_proj", "up_proj")]
    if name.endswith(".experts.down_proj"):
        base = name.removesuffix("down_proj")
        return [f"{base}{e}.down_proj.weight" for e in range(shape[0])]
    for fused, parts in FUSED.items():
        if name.endswith(fused):
            return [name.removesuffix(fused) + part for part in parts]
    return [name]


def source_shapes(name: str, shape: torch.Size) -> list[tuple[str, tuple[int, ...] | None]]:
    """:func:`sources` with the shape that each must have on disk; ``None`` where only their sum is known (q, k, v)."""
    names = sources(name, shape)
    if name.endswith(".experts.gate_up_proj"):
        return [(each, (shape[1] // 2, shape[2])) for each in names]
    if name.endswith(".experts.down_proj"):
        return [(each, tuple(shape[1:])) for each in names]
    if len(names) == 1:
        return [(names[0], tuple(shape))]
    if name.endswith("gate_up_proj.weight"):
        return [(each, (shape[0] // 2, *shape[1:])) for each in names]
    return [(each, None) for each in names]


def load_module(
    module: ModuleT,
    checkpoint: Checkpoint,
    prefixes: dict[str, str],
    *,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    rename: Callable[[str], str] = lambda name: name,
    part_of: PartOf = whole,
) -> ModuleT:
    """Fill a module made on the meta device.

    Args:
        prefixes: from a prefix of the module's own names to the prefix on disk: ``{"model.": "thinker.model."}``.
        rename: from a module's (prefixed) name to its on-disk name, for networks whose names have changed.
        part_of: which part of each on-disk tensor the module holds, for one rank of several.

    Raises:
        ConfigError: a tensor is missing or has a wrong shape; the message names it with both shapes.
    """
    expected = {name: tensor.shape for name, tensor in module.state_dict().items()}
    plan = {
        name: [(rename(_prefixed(source, prefixes)), wanted) for source, wanted in source_shapes(name, shape)]
        for name, shape in expected.items()
    }
    found = checkpoint.read((source for parts in plan.values() for source, _ in parts), part_of)
    state = {}
    for name, parts in plan.items():
        for source, wanted in parts:
            if wanted is not None and tuple(found[source].shape) != wanted:
                raise ConfigError(
                    f"the tensor {source!r} of {checkpoint.folder} has shape {tuple(found[source].shape)}, "
                    f"the config asks for {wanted}"
                )
        tensors = [found.pop(source) for source, _ in parts]
        joined = (
            tensors[0]
            if len(tensors) == 1
            else torch.cat(tensors).reshape(_joined_shape(name, tensors, expected[name]))
        )
        if joined.shape != expected[name]:
            names = ", ".join(repr(source) for source, _ in parts)
            raise ConfigError(
                f"the tensors {names} of {checkpoint.folder} make shape {tuple(joined.shape)}, "
                f"the config asks for {tuple(expected[name])}"
            )
        state[name] = joined.to(device=device, dtype=dtype if joined.is_floating_point() else None)
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def _joined_shape(name: str, tensors: list[torch.Tensor], shape: torch.Size) -> tuple[int, ...]:
    """Experts are stacked into a dimension of their own; everything else stays concatenated."""
    if ".experts." in name:
        return tuple(shape)
    return (sum(tensor.shape[0] for tensor in tensors), *tensors[0].shape[1:])


def _prefixed(name: str, prefixes: dict[str, str]) -> str:
    for own, on_disk in prefixes.items():
        if name.startswith(own):
            return on_disk + name.removeprefix(own)
    raise KeyError(f"no prefix covers {name!r}")
