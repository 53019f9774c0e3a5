"""Maps our parameters to their on-disk names: query, key and value, and gate and up, which we join, are read from one tensor each."""

from __future__ import annotations

import torch

from omni_torch.api import Source

JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Our joined layers, and those on disk that are stacked along the first dimension."""


def sources(prefix: str, name: str, shape: torch.Size) -> list[Source]:
    """Return the on-disk tensors that make up one of our parameters, whose names have ``prefix`` before ours."""
    base, _, kind = name.rpartition(".")
    stem, _, layer = base.rpartition(".")
    if layer in JOINED:
        return [(f"{prefix}{stem}.{part}.{kind}", None) for part in JOINED[layer]]
    return [(prefix + name, tuple(shape))]
