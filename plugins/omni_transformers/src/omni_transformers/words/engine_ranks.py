"""Splits a model's decoder over tensor parallel ranks, by the plan that transformers has for it.

A rank keeps its part of each weight that the plan splits. The forward of a split module is replaced by one that also does what its style
needs of the other ranks. Modules that a text does not need, such as encoders, are freed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch import nn

from omni_core.api import ConfigError
from omni_torch.api import Part, TensorParallel
from omni_transformers.words.engine_layers import Layer
from omni_transformers.words.engine_model import Decoder

Forward = Callable[..., torch.Tensor]


def _summed(own: Forward, module: Any, parallel: TensorParallel) -> Forward:
    return lambda *given, **named: parallel.all_reduce(own(*given, **named).contiguous())


def _gathered(own: Forward, module: Any, parallel: TensorParallel) -> Forward:
    return lambda x: parallel.all_gather(own(x))


def _of_its_input(own: Forward, module: Any, parallel: TensorParallel) -> Forward:
    return lambda x: parallel.all_reduce(own(x.chunk(parallel.size, -1)[parallel.rank]))


def _looked_up(own: Forward, module: Any, parallel: TensorParallel) -> Forward:
    count = len(module.weight)
    module.padding_idx = None  # it is an id of the whole vocabulary

    def forward(ids: torch.Tensor) -> torch.Tensor:
        ids = ids - parallel.rank * count
        other = (ids < 0) | (ids >= count)
        return parallel.all_reduce(own(ids.masked_fill(other, 0)).masked_fill(other.unsqueeze(-1), 0))

    return forward


@frozen
class _Style:
    """The style of a plan for a module, or for a parameter alone.

    Attributes:
        dim: the dimension of weights that is split, from the last on; ``None``: none. Of vectors, the first is, if this is -2.
        packed: true if that dimension holds two matrices, each of which is split.
        around: returns the forward of a module with split weights.
        whole: true if its inputs and outputs are those of the whole module, which then may stay whole.
    """

    dim: int | None = None
    packed: bool = False
    around: Callable[[Forward, Any, TensorParallel], Forward] | None = None
    whole: bool = False


_STYLES = {
    "colwise": _Style(-2),
    "rowwise": _Style(-1, around=_summed),
    **dict.fromkeys(["colwise_gather_output", "colwise_rep"], _Style(-2, around=_gathered, whole=True)),
    **dict.fromkeys(["rowwise_split_input", "rowwise_rep"], _Style(-1, around=_of_its_input, whole=True)),
    "packed_colwise": _Style(-2, packed=True),
    "packed_rowwise": _Style(-1, packed=True),
    "embedding_rowwise": _Style(-2, around=_looked_up, whole=True),
    **dict.fromkeys(["moe_tp_experts", "all_reduce"], _Style(around=_summed)),
    # for gradients, or for transformers' own kind of split tensors
    **dict.fromkeys(["replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "local_params"], _Style()),
}
"""The styles of transformers by name."""


@frozen(eq=False)
class _Entry:
    """A module, or one of its parameters, and what is done to it."""

    name: str
    module: nn.Module
    parameter: str | None
    style: _Style


def planned(model: Any, decoder: Decoder) -> list[_Entry]:
    """Return what the plan of a model does to its decoder, its embeddings and its head.

    Raises:
        ConfigError: transformers has no plan for the decoder, or one with a style that is not known here.
    """
    kept = {module for root in _roots(model, decoder) for module in root.modules()}
    entries = []
    plan: dict[str, str] = getattr(model, "tp_plan", None) or {}
    for name, module, parameter in _named(model):
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is None or module not in kept:
            continue
        found = _STYLES.get(style)
        linear = parameter is not None or isinstance(module, nn.Linear | nn.Embedding)
        if found is None or (found.dim is not None and not linear):
            what = f"{name} ({type(module).__name__}) by {style!r}"
            raise ConfigError(
                f"tp_size: the plan of {type(model).__name__} splits {what}, which is not known here; use tp_size 1"
            )
        entries.append(_Entry(name, module, parameter, found))
    inside = {*decoder.module.modules()} - {model.get_input_embeddings(), model.get_output_embeddings()}
    if not any(each.style.dim is not None and each.module in inside for each in entries):
        raise ConfigError(
            f"tp_size: transformers has no tensor parallel plan for the decoder of {type(model).__name__}; use tp_size 1"
        )
    return entries


def split(
    model: Any, decoder: Decoder, entries: list[_Entry], layers: list[Layer], parallel: TensorParallel, device: str
) -> None:
    """Split a whole model on a CPU, and put what this rank keeps on its device.

    Args:
        entries: of :func:`planned`.
        layers: as they were examined, of the whole model.

    Raises:
        ConfigError: the ranks cannot share heads or a dimension equally.
    """
    attention = {each.attention: each for each in layers}
    with torch.inference_mode(False), torch.no_grad():
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        tied = head.weight is embedding.weight
        for entry in entries:
            layer = attention.get(model.get_submodule(entry.name.rpartition(".")[0]))
            part = parallel.part(0) if layer is None or entry.style.whole else _heads(entry, layer, parallel)
            _split(entry, part, parallel)
        if tied and head.weight.shape == embedding.weight.shape:
            head.weight = embedding.weight
        _place(model, device, {each for root in _roots(model, decoder) for each in root.parameters()})


def without_layers(model: Any, device: str) -> Decoder:
    """Free the layers of a model's decoder and its head, and put the rest on a device. It makes prompts of media, and nothing else."""
    decoder = Decoder(model)
    layers = [each for each in decoder.module.children() if isinstance(each, nn.ModuleList)]
    freed = {each for root in [*layers, model.get_output_embeddings()] for each in root.parameters()}
    freed -= {*model.get_input_embeddings().parameters()}  # which may be those of the head
    with torch.inference_mode(False), torch.no_grad():
        _place(model, device, {*model.parameters()} - freed)
    return decoder


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Yield names of modules and of their parameters, tied ones too."""
    for name, module in model.named_modules():
        yield name, module, None
        for parameter, _ in module.named_parameters(recurse=False):
            yield f"{name}.{parameter}", module, parameter


def _roots(model: Any, decoder: Decoder) -> set[nn.Module]:
    return {decoder.module, model.get_input_embeddings(), model.get_output_embeddings()}


def _heads(entry: _Entry, layer: Layer, parallel: TensorParallel) -> Part:
    """Return this rank's part of a projection inside attention: whole heads, those of keys and values repeated if they are too few."""
    if entry.style.dim != -2:
        return parallel.part(0)
    parallel.share(layer.heads, "attention heads")
    kv_heads = layer.kv_heads
    if kv_heads % parallel.size == 0 or entry.name.endswith(("q_proj", "sinks")):
        return parallel.part(0)
    if parallel.size % kv_heads or not entry.name.endswith(("k_proj", "v_proj")):
        raise ConfigError(
            f"tp_size: {parallel.size} ranks cannot share the {kv_heads} key/value heads of {entry.name.rpartition('.')[0]} evenly"
        )
    return Part(0, parallel.rank * kv_heads // parallel.size, kv_heads)


def _split(entry: _Entry, part: Part, parallel: TensorParallel) -> None:
    module, style = entry.module, entry.style
    if style.dim is not None:
        weights = [
            (name, each) for name, each in module.named_parameters(recurse=False) if entry.parameter in (None, name)
        ]
        if style.whole and any(each.shape[style.dim] % part.count for _, each in weights if each.dim() > 1):
            return
        for name, weight in weights:
            own = _part(weight, entry.name if entry.parameter else f"{entry.name}.{name}", style, part)
            if weight.dim() == 1 and style.dim == -1 and style.around is not None and parallel.rank:
                own.zero_()  # a bias is added once
            setattr(module, name, nn.Parameter(own, requires_grad=False))
    if style.around is not None and entry.parameter is None:
        module.forward = style.around(module.forward, module, parallel)


def _part(weight: torch.Tensor, name: str, style: _Style, part: Part) -> torch.Tensor:
    assert style.dim is not None
    if weight.dim() == 1 and style.dim == -1:
        return weight.clone()
    dim = max(weight.dim() + style.dim, 0)
    if not style.packed:
        return weight[Part(dim, part.index, part.count).bounds(name, weight.shape)].clone()
    both = weight.unflatten(dim, (2, -1))
    return both[Part(dim + 1, part.index, part.count).bounds(name, both.shape)].flatten(dim, dim + 1).contiguous()


def _place(model: nn.Module, device: str, kept: set[nn.Parameter]) -> None:
    """Put weights that are kept on a device, and free the others: they are empty."""
    for weight in model.parameters():
        weight.data = (weight.data if weight in kept else weight.data.new_empty(0)).to(device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
