"""Layers that a checkpoint stores in 4 bits, kept so: their layers are made before the weights are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

import torch
from torch import nn

from omni_qwen3.layers import Experts
from omni_torch.quantized_linear import Int4Linear, Int4WeightLinear
from omni_torch.weights import Checkpoint

OnDisk = Callable[[str, torch.Size], Iterable[str]]
"""Maps a parameter's name and shape to the names of its on-disk tensors."""


def keep_narrow(model: nn.Module, checkpoint: Checkpoint, on_disk: OnDisk, *, int8_inputs: bool = False) -> None:
    """Replace the linear layers and the experts of a model on the meta device whose tensors are stored in 4 bits that our kernels read; the
    others are loaded in the model's dtype.

    A layer that is joined from several tensors needs all of them of one kind, and so do the experts of a layer.

    Args:
        int8_inputs: they get inputs in 8 bits, as :class:`~omni_torch.quantized_linear.Int4Linear` has them.
    """
    described = (Int4Linear if int8_inputs else Int4WeightLinear).described
    for name, module in list(model.named_modules()):
        for child, layer in list(module.named_children()):
            if type(layer) is nn.Linear:
                weight = layer.weight
                kind = checkpoint.narrow(on_disk(f"{name}.{child}.weight".lstrip("."), weight.shape))
                if kind is not None:
                    setattr(module, child, described(*weight.shape, zero_points=kind, bias=layer.bias))
        if isinstance(module, Experts):
            shapes = module.gate_up_proj.shape, module.down_proj.shape
            names = [
                on_disk(f"{name}.{each}", shape)
                for each, shape in zip(("gate_up_proj", "down_proj"), shapes, strict=True)
            ]
            kind = checkpoint.narrow(chain.from_iterable(names))
            if kind is not None:
                module.describe_packed(partial(described, zero_points=kind))
