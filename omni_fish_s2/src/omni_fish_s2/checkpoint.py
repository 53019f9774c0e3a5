"""Reading the decoders' weights: safetensors, sharded or not, under the released names.

What our modules join (queries, keys and values; gate and input of the feed-forward) is joined here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from omni_core.errors import ConfigError

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"

JOINED = {
    "wqkv.weight": ("wq.weight", "wk.weight", "wv.weight"),
    "wqkv.bias": ("wq.bias", "wk.bias", "wv.bias"),
    "w13.weight": ("w1.weight", "w3.weight"),
}
"""Parameters of ours, and the on-disk tensors that are stacked (first dimension) where they are not joined on disk already."""


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
            with _open(single) as shard:
                return dict.fromkeys(shard.keys(), single)
        raise ConfigError(f"{self.folder} holds no weights: neither {_INDEX} nor {_SINGLE}")

    def sources(self, name: str) -> list[str]:
        """The on-disk tensors that make up one (prefixed) parameter."""
        for joined, parts in JOINED.items():
            if name.endswith(joined) and name not in self.shards:
                return [name.removesuffix(joined) + part for part in parts]
        return [name]

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Tensors by name; each shard is opened once.

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
                    tensors[name] = shard.get_tensor(name)
        return tensors


def _open(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except FileNotFoundError:
        raise ConfigError(f"the shard {path} is missing; download the checkpoint again") from None
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"the shard {path} cannot be read: {error}") from error


def load_module(
    module: ModuleT,
    checkpoint: Checkpoint,
    prefixes: dict[str, str],
    *,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
) -> ModuleT:
    """Fill a module made on the meta device.

    Args:
        prefixes: from a prefix of the module's own names to the prefix on disk; the first that fits counts.

    Raises:
        ConfigError: a tensor is missing or has a wrong shape; the message names it with both shapes.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    plan = {name: checkpoint.sources(_prefixed(name, prefixes)) for name in expected}
    found = checkpoint.read(source for parts in plan.values() for source in parts)
    state = {}
    for name, parts in plan.items():
        shapes = [tuple(found[part].shape) for part in parts]
        whole = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        if whole != expected[name] or any(shape[1:] != whole[1:] for shape in shapes):
            made = ", ".join(f"{part!r} {shape}" for part, shape in zip(parts, shapes, strict=True))
            raise ConfigError(f"{checkpoint.folder}: {made}; the config asks for {expected[name]} in all")
        tensor = torch.cat([found.pop(part) for part in parts]) if len(parts) > 1 else found.pop(parts[0])
        state[name] = tensor.to(device=device, dtype=dtype)
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def _prefixed(name: str, prefixes: dict[str, str]) -> str:
    for own, on_disk in prefixes.items():
        if name.startswith(own):
            return on_disk + name.removeprefix(own)
    raise KeyError(f"no prefix covers {name!r}")
