"""Reads the tensors of a checkpoint's safetensors shards, or parts of them, into a module made on the meta device.

A stage opens only the shards, and reads only the tensors, that its own network needs. A model says under which names its
parameters are on disk (:data:`Sources`). Needs ``safetensors``, which model distributions depend on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from omni_core.api import ConfigError
from omni_torch.checkpoints.folders import checked_file, load_checked, read_json
from omni_torch.checkpoints.headers import INDEX, SINGLE, weight_map
from omni_torch.operations.few_rows import Groups
from omni_torch.processes.tensor_parallel import Part

ModuleT = TypeVar("ModuleT", bound=nn.Module)

Source = tuple[str, tuple[int, ...] | None]
"""The name of an on-disk tensor and the shape that it must have; ``None``: only the number of rows of all sources is known."""

Sources = Callable[[str, torch.Size], list[Source]]
"""Maps a parameter's name and shape to the on-disk tensors that make it up, stacked along the first dimension.

Parameters with the same sources share one tensor (tied embeddings).
"""

PartOf = Callable[[str], Part | None]
"""Maps the name of an on-disk tensor to the part of it that is wanted; ``None``: all of it."""


def whole(name: str) -> None:
    """A :data:`PartOf`: every tensor in full."""


class Checkpoint:
    """The tensors of a checkpoint folder by their on-disk names.

    Raises:
        ConfigError: there are no weights, the index is invalid, or a shard cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.shards = self._read_index()

    def _read_index(self) -> dict[str, Path]:
        index, single = self.folder / INDEX, self.folder / SINGLE
        if index.exists():
            return {name: self.folder / shard for name, shard in weight_map(read_json(index), str(index)).items()}
        if single.exists():
            with _open(single) as shard:
                return dict.fromkeys(shard.keys(), single)
        raise ConfigError(f"{self.folder} holds no weights: neither {INDEX} nor {SINGLE}")

    def read(
        self, names: Iterable[str], part_of: PartOf = whole, dtype: torch.dtype | None = None
    ) -> dict[str, torch.Tensor]:
        """Read tensors by name, or the parts of them that ``part_of`` selects. Each shard is opened once, and no more of it is read.

        Args:
            dtype: of floats that are made of other tensors; ``None``: float32. Those that are stored keep their dtype.

        Raises:
            ConfigError: a tensor or a shard is missing; the message names both. Or a tensor is stored in floats of 8 bits, whose scales
                are not known.
        """
        tensors = self._stored(names, part_of)
        for name, tensor in tensors.items():
            if is_scaled(tensor.dtype) and tensor.is_floating_point():
                raise self._undescribed(name, tensor)
        return tensors

    def _stored(self, names: Iterable[str], part_of: PartOf = whole) -> dict[str, torch.Tensor]:
        by_shard: dict[Path, list[str]] = {}
        for name in dict.fromkeys(names):
            by_shard.setdefault(self.shard_of(name), []).append(name)
        tensors = {}
        for path, wanted in by_shard.items():
            with _open(path) as shard:
                present = set(shard.keys())
                for name in wanted:
                    if name not in present:
                        raise ConfigError(f"the shard {path} lacks the tensor {name!r}, which {INDEX} says it has")
                    tensors[name] = load_checked(
                        f"{path}: the tensor {name!r}", partial(_read, shard, name, part_of(name))
                    )
        return tensors

    def narrow(self, weights: Iterable[str]) -> Groups | None:
        """Return the form in which these tensors, ``X.weight``, are stored, if they can be loaded as they are, in groups. See
        :mod:`omni_torch.quantization.quantized_checkpoints`.
        """
        return None

    def read_rows(self, name: str, rows: list[int]) -> torch.Tensor:
        """Read some rows of a matrix only: ``[len(rows), ...]``."""
        with _open(self.shard_of(name)) as shard:
            matrix = shard.get_slice(name)
            found = torch.cat([matrix[row : row + 1] for row in rows])
        self._check_kind(name, found, torch.float32)
        return found

    def _check_kind(self, name: str, tensor: torch.Tensor, wanted: torch.dtype) -> None:
        """Check that a tensor can have the place of one of the dtype ``wanted``."""
        if wanted.is_floating_point and not is_scaled(wanted):
            if is_scaled(tensor.dtype):
                raise self._undescribed(name, tensor)
            if not tensor.is_floating_point():
                raise self._other_kind(name, tensor, "floats")
        elif not wanted.is_floating_point and (
            tensor.is_floating_point() or tensor.dtype.is_complex or tensor.dtype == torch.bool
        ):
            raise self._other_kind(name, tensor, "whole numbers")

    def _other_kind(self, name: str, tensor: torch.Tensor, wanted: str) -> ConfigError:
        return ConfigError(
            f"{self.shard_of(name)}: the tensor {name!r} is stored as {str(tensor.dtype).removeprefix('torch.')}, the network has {wanted} "
            "there; download the checkpoint again"
        )

    def _undescribed(self, name: str, tensor: torch.Tensor) -> ConfigError:
        return ConfigError(
            f"{self.shard_of(name)}: the tensor {name!r} is stored as {str(tensor.dtype).removeprefix('torch.')}, with scales that "
            "config.json does not describe (quantization_config); use a checkpoint in bfloat16, or one that describes them"
        )

    def shard_of(self, name: str) -> Path:
        """Return the file that holds a tensor.

        Raises:
            ConfigError: no file does.
        """
        if name not in self.shards:
            raise ConfigError(f"the checkpoint {self.folder} lacks the tensor {name!r}{self._instead(name)}")
        return self.shards[name]

    def _instead(self, name: str) -> str:
        """Return what is said of a missing weight whose layer has other tensors: it is quantised."""
        layer = f"{name.removesuffix('weight')}"
        parts = sorted(each.removeprefix(layer) for each in self.shards if name != layer and each.startswith(layer))
        if not any(part.startswith(("q", "weight_", "scales")) for part in parts):
            return ""
        return (
            f", but has its {', '.join(parts)}: it is quantised, in a way that config.json (quantization_config) does not describe; "
            "use a checkpoint in bfloat16, or download its config again"
        )


def _read(shard: Any, name: str, part: Part | None) -> torch.Tensor:
    if part is None:
        tensor: torch.Tensor = shard.get_tensor(name)
        return tensor
    rows = shard.get_slice(name)
    sliced: torch.Tensor = rows[part.bounds(name, tuple(rows.get_shape()))]
    return sliced.contiguous()


def _open(path: Path) -> Any:
    try:
        return safe_open(checked_file(path, kind="the shard"), "pt")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"the shard {path} cannot be read: {error}") from error


def _join(found: dict[str, torch.Tensor], parts: list[Source], shape: torch.Size) -> torch.Tensor:
    """Join the sources of one parameter.

    Raises:
        ConfigError: a source has a wrong shape; the message names it with both shapes.
    """
    tensors = [found[source] for source, _ in parts]
    for (source, wanted), tensor in zip(parts, tensors, strict=True):
        if wanted is not None and tensor.shape != wanted:
            raise ConfigError(f"the tensor {source!r} has shape {tuple(tensor.shape)}, the config asks for {wanted}")
    if any(wanted is None for _, wanted in parts) and (
        any(tensor.shape[1:] != shape[1:] for tensor in tensors) or sum(map(len, tensors)) != shape[0]
    ):
        made = ", ".join(
            f"{source!r} {tuple(tensor.shape)}" for (source, _), tensor in zip(parts, tensors, strict=True)
        )
        raise ConfigError(f"the tensors {made} are joined; the config asks for {tuple(shape)} in all")
    return (torch.cat(tensors) if len(tensors) > 1 else tensors[0]).reshape(shape)


def is_scaled(dtype: torch.dtype) -> bool:
    """Return whether values of this dtype are those of a weight only with scales: int8, and floats of 8 bits."""
    return dtype == torch.int8 or (dtype.is_floating_point and dtype.itemsize == 1)


def embedding(rows: int, width: int) -> nn.Embedding:
    """Return an ``nn.Embedding``, without values on the meta device: drawing none there would import torch's compiler, which takes a
    second and 100 MB.
    """
    weight = torch.empty(rows, width)
    return nn.Embedding.from_pretrained(weight, freeze=False) if weight.is_meta else nn.Embedding(rows, width)


def load_module(
    module: ModuleT,
    checkpoint: Checkpoint,
    sources: Sources,
    *,
    dtype: torch.dtype | None,
    device: str | torch.device = "cpu",
    part_of: PartOf = whole,
) -> ModuleT:
    """Fill a module made on the meta device; it is then for inference only.

    Args:
        dtype: of floating-point parameters; ``None``: each keeps the one that it is stored in.
        part_of: the part of each on-disk tensor that the module holds, for one rank of several.

    Raises:
        ConfigError: a tensor is missing or has a wrong shape; the message names it with both shapes. Or it is stored in 8 bits, with
            scales that the module does not hold.
    """
    described = module.state_dict()
    shapes = {name: tensor.shape for name, tensor in described.items()}
    plan: dict[str, list[Source]] = {}
    for name, shape in shapes.items():
        plan[name] = sources(name, shape) if shape.numel() else []
        for source, _ in plan[name]:
            checkpoint.shard_of(source)  # stop at the first missing tensor: a config may ask for millions of layers
    found = checkpoint.read((source for parts in plan.values() for source, _ in parts), part_of, dtype)
    users = Counter(source for parts in plan.values() for source, _ in parts)
    made: dict[tuple[Source, ...], torch.Tensor] = {}
    state = {}
    for name, parts in plan.items():
        if not shapes[name].numel():
            state[name] = torch.empty(shapes[name], dtype=dtype, device=device)
            continue
        key = tuple(parts)
        if key not in made:
            for source, _ in parts:
                checkpoint._check_kind(source, found[source], described[name].dtype)
            try:
                tensor = _join(found, parts, shapes[name])
            except ConfigError as error:
                raise ConfigError(f"{checkpoint.folder}: {error}") from None
            keeps = not tensor.is_floating_point() or name.endswith("._scales")  # their dtype is part of a layout
            made[key] = tensor.to(device=device, dtype=None if keeps else dtype)
        state[name] = made[key]
        for source, _ in parts:  # free each tensor as soon as it is in place
            users[source] -= 1
            if not users[source]:
                del found[source]
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def prefixed(name: str, prefixes: dict[str, str]) -> str:
    """Replace the first prefix that fits a parameter's name by that on disk: ``{"model.": "thinker.model."}``."""
    for own, on_disk in prefixes.items():
        if name.startswith(own):
            return on_disk + name.removeprefix(own)
    raise KeyError(f"no prefix covers {name!r}")
