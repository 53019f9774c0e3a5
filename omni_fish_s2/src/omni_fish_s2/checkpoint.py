"""Under which names the decoders' parameters are on disk.

What our modules join (queries, keys and values; gate and input of the feed-forward) is joined while it is read.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from omni_torch import weights
from omni_torch.weights import Checkpoint, Source, prefixed

ModuleT = TypeVar("ModuleT", bound=nn.Module)

JOINED = {
    "wqkv.weight": ("wq.weight", "wk.weight", "wv.weight"),
    "wqkv.bias": ("wq.bias", "wk.bias", "wv.bias"),
    "w13.weight": ("w1.weight", "w3.weight"),
}
"""Parameters of ours, and the on-disk tensors that are stacked (first dimension) where they are not joined on disk already."""


def load_module(
    module: ModuleT, folder: str, prefixes: dict[str, str], *, dtype: torch.dtype, device: str | torch.device = "cpu"
) -> ModuleT:
    """:func:`omni_torch.weights.load_module` by the released names, the ``prefixes`` put before them."""
    checkpoint = Checkpoint(folder)

    def sources(name: str, shape: torch.Size) -> list[Source]:
        name = prefixed(name, prefixes)
        for joined, parts in JOINED.items():
            if name.endswith(joined) and name not in checkpoint.shards:
                return [(name.removesuffix(joined) + part, None) for part in parts]
        return [(name, tuple(shape))]

    return weights.load_module(module, checkpoint, sources, dtype=dtype, device=device)
