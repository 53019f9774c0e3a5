"""Layers that a checkpoint stores in 8 or 4 bits, kept so: their layers are made before the weights are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

import torch
from torch import nn

from omni_qwen3.layers import Experts
from omni_torch.api import GROUP, Checkpoint, Groups, Int4Linear, Int4WeightLinear, Int8GroupsLinear, few_rows_linear

OnDisk = Callable[[str, torch.Size], Iterable[str]]
"""Maps a parameter's name and shape to the names of its on-disk tensors."""


def keep_narrow(
    model: nn.Module,
    checkpoint: Checkpoint,
    on_disk: OnDisk,
    quantization: str | None,
    dtype: torch.dtype,
    *,
    experts_only: bool = False,
) -> None:
    """Replace the linear layers and the experts of a model on the meta device whose tensors are stored in 8 or 4 bits that our kernels
    read; the others are loaded in the model's dtype.

    A layer that is joined from several tensors needs all of them of one kind, and so do the experts of a layer.

    Args:
        quantization: of the stage. Layers in 4 bits are kept whatever it says, and get inputs in 8 bits if it says so; layers in 8 bits are
            kept if it says ``int8_weight_only_groups``, or nothing where a kernel of ``few_rows_linear`` computes them.
        dtype: of the stage.
        experts_only: of a rank that holds experts whole and slices of the other layers, which cannot be kept so.
    """
    describe = partial(_description, quantization, dtype)
    for name, module in list(model.named_modules()):
        for child, layer in list(module.named_children()):
            if type(layer) is nn.Linear and not experts_only:
                weight = layer.weight
                stored = checkpoint.narrow(on_disk(f"{name}.{child}.weight".lstrip("."), weight.shape))
                if (described := describe(stored, weight.shape)) is not None:
                    setattr(module, child, described(*weight.shape, bias=layer.bias))
        if isinstance(module, Experts):
            shapes = module.gate_up_proj.shape, module.down_proj.shape
            names = [
                on_disk(f"{name}.{each}", shape)
                for each, shape in zip(("gate_up_proj", "down_proj"), shapes, strict=True)
            ]
            stored = checkpoint.narrow(chain.from_iterable(names))
            if (described := describe(stored, *shapes)) is not None:
                module.describe_packed(described)


def _description(
    quantization: str | None, dtype: torch.dtype, stored: Groups | None, *shapes: torch.Size
) -> Callable[..., nn.Module] | None:
    """Return what makes a layer without values for weights that are stored so; ``None``: they are not kept."""
    if stored is None or any(shape[-1] % GROUP for shape in shapes):
        return None
    if stored.bits == 8:
        kept = quantization is None and few_rows_linear.replaced("cpu", dtype)
        return Int8GroupsLinear.described if kept or quantization == "int8_weight_only_groups" else None
    kind = Int4Linear if quantization == "int8_dynamic_activation_int4_weight" else Int4WeightLinear
    return partial(kind.described, zero_points=stored.zero_points)
