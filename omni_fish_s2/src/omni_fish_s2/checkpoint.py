"""Maps the decoders' parameters to their on-disk names.

Tensors that our modules join (queries, keys and values; gate and input of the feed-forward) are joined while they are read.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from omni_torch import api
from omni_torch.api import Source, open_checkpoint, prefixed

ModuleT = TypeVar("ModuleT", bound=nn.Module)

JOINED = {
    "wqkv.weight": ("wq.weight", "wk.weight", "wv.weight"),
    "wqkv.bias": ("wq.bias", "wk.bias", "wv.bias"),
    "w13.weight": ("w1.weight", "w3.weight"),
}
"""Maps our parameters to the on-disk tensors that are stacked along the first dimension, unless they are joined on disk
already.
"""


def load_module(
    module: ModuleT,
    folder: str,
    prefixes: dict[str, str],
    *,
    dtype: torch.dtype | None,
    device: str | torch.device = "cpu",
) -> ModuleT:
    """Call :func:`omni_torch.checkpoints.weights.load_module` with the released names, which have ``prefixes`` before ours."""
    checkpoint = open_checkpoint(folder)

    def sources(name: str, shape: torch.Size) -> list[Source]:
        name = prefixed(name, prefixes)
        for joined, parts in JOINED.items():
            if name.endswith(joined) and name not in checkpoint.shards:
                return [(name.removesuffix(joined) + part, None) for part in parts]
        return [(name, tuple(shape))]

    return api.load_module(module, checkpoint, sources, dtype=dtype, device=device)
