"""Maps our parameters to their on-disk names: fused ones are stacked from several tensors, experts from one each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import nn

from omni_torch import api
from omni_torch.api import Checkpoint, PartOf, Source, open_checkpoint, prefixed, read_json, whole

__all__ = ["Checkpoint", "PartOf", "load_module", "open_checkpoint", "sources"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def sources(name: str, shape: torch.Size, first_expert: int = 0) -> list[Source]:
    """Return the on-disk tensors (below the prefix) that make up one of our parameters.

    Args:
        first_expert: the number on disk of a mixture's first expert, of a rank that holds some of them.
    """
    if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
        base, _, kind = name.rpartition(".")
        numbers = range(first_expert, first_expert + shape[0])
        if kind == "gate_up_proj":
            half = (shape[1] // 2, shape[2])
            return [(f"{base}.{e}.{part}.weight", half) for e in numbers for part in ("gate_proj", "up_proj")]
        return [(f"{base}.{e}.down_proj.weight", tuple(shape[1:])) for e in numbers]
    if ".experts.packed." in name:  # two layers of each expert, as stored in 8 or 4 bits
        base, _, rest = name.rpartition(".packed.")
        number, _, kind = rest.partition(".")
        expert = f"{base}.{first_expert + int(number) // 2}"
        if int(number) % 2:
            return [(f"{expert}.down_proj.{kind}", tuple(shape))]
        return [(f"{expert}.{part}.{kind}", (shape[0] // 2, *shape[1:])) for part in ("gate_proj", "up_proj")]
    for kind in ("weight", "_weight", "_scales"):
        if name.endswith(f"gate_up_proj.{kind}"):
            base, half = name.removesuffix(f"gate_up_proj.{kind}"), (shape[0] // 2, *shape[1:])
            return [(f"{base}{part}.{kind}", half) for part in ("gate_proj", "up_proj")]
    for kind in ("weight", "bias", "_weight", "_scales"):
        if name.endswith(f"qkv_proj.{kind}"):
            base = name.removesuffix(f"qkv_proj.{kind}")
            return [(f"{base}{part}.{kind}", None) for part in ("q_proj", "k_proj", "v_proj")]
    return [(name, tuple(shape))]


def tied_names(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the output heads that a checkpoint does not hold because its config ties them, with their embeddings."""
    heads = {"thinker": ("lm_head", "embed_tokens"), "talker": ("codec_head", "codec_embedding")}
    config = read_json(checkpoint.folder / "config.json")
    tied = {}
    for part, (head, embedding) in heads.items():
        section, name = config.get(f"{part}_config"), f"{part}.{head}.weight"
        if isinstance(section, dict) and section.get("tie_word_embeddings") is True and name not in checkpoint.shards:
            tied[name] = f"{part}.model.{embedding}.weight"
    return tied


def load_module(
    module: ModuleT,
    checkpoint: Checkpoint,
    prefixes: dict[str, str],
    *,
    dtype: torch.dtype | None,
    device: str | torch.device = "cpu",
    part_of: PartOf = whole,
    first_expert: int = 0,
) -> ModuleT:
    """Call :func:`omni_torch.checkpoints.weights.load_module` with on-disk names, which have ``prefixes`` before ours.

    Args:
        first_expert: as of :func:`sources`.
    """
    names = disk_names(checkpoint, prefixes, first_expert)
    return api.load_module(module, checkpoint, names, dtype=dtype, device=device, part_of=part_of)


def disk_names(checkpoint: Checkpoint, prefixes: dict[str, str], first_expert: int = 0) -> api.Sources:
    """Return :func:`sources` with the names that the checkpoint has."""
    tied = tied_names(checkpoint)

    def on_disk(name: str, shape: torch.Size) -> list[Source]:
        found = [(prefixed(source, prefixes), wanted) for source, wanted in sources(name, shape, first_expert)]
        return [(tied.get(source, source), wanted) for source, wanted in found]

    return on_disk


def weights_of(
    checkpoint: Checkpoint, prefixes: dict[str, str], first_expert: int = 0
) -> Callable[[str, torch.Size], Iterator[str]]:
    """Return :func:`disk_names` without shapes, made when they are read: a config may ask for millions of experts."""
    on_disk = disk_names(checkpoint, prefixes, first_expert)

    def names(name: str, shape: torch.Size) -> Iterator[str]:
        for source, _ in on_disk(name, shape):
            yield source

    return names
