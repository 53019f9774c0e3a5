"""Under which names our parameters are on disk: fused ones are stacked of several tensors, experts of one by one."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from omni_torch import weights
from omni_torch.weights import Checkpoint, PartOf, Source, prefixed, whole

__all__ = ["Checkpoint", "PartOf", "load_module", "sources"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def sources(name: str, shape: torch.Size) -> list[Source]:
    """The on-disk tensors (below the prefix) that make up one of our parameters."""
    if name.endswith(".experts.gate_up_proj"):
        base, half = name.removesuffix("gate_up_proj"), (shape[1] // 2, shape[2])
        return [(f"{base}{e}.{part}.weight", half) for e in range(shape[0]) for part in ("gate_proj", "up_proj")]
    if name.endswith(".experts.down_proj"):
        base = name.removesuffix("down_proj")
        return [(f"{base}{e}.down_proj.weight", tuple(shape[1:])) for e in range(shape[0])]
    if name.endswith("gate_up_proj.weight"):
        base, half = name.removesuffix("gate_up_proj.weight"), (shape[0] // 2, shape[1])
        return [(f"{base}{part}.weight", half) for part in ("gate_proj", "up_proj")]
    if name.endswith("qkv_proj.weight"):
        base = name.removesuffix("qkv_proj.weight")
        return [(f"{base}{part}.weight", None) for part in ("q_proj", "k_proj", "v_proj")]
    return [(name, tuple(shape))]


def load_module(
    module: ModuleT,
    checkpoint: Checkpoint,
    prefixes: dict[str, str],
    *,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    part_of: PartOf = whole,
) -> ModuleT:
    """:func:`omni_torch.weights.load_module` by our names, the ``prefixes`` put before them."""

    def on_disk(name: str, shape: torch.Size) -> list[Source]:
        return [(prefixed(source, prefixes), wanted) for source, wanted in sources(name, shape)]

    return weights.load_module(module, checkpoint, on_disk, dtype=dtype, device=device, part_of=part_of)
