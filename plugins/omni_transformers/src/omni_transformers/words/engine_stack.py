"""A decoder of the common form (RMS norms, rotary positions, grouped heads, gated feed-forward or experts) as data for kernels.

It is recognised by the names and shapes of its modules; whoever uses it compares its results with the decoder's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.api import ForwardBatch, ForwardOutput, KVLayout
from omni_torch.api import (
    SCALES,
    VALUES,
    DecoderStack,
    DecoderStep,
    LayerWeights,
    Matrix,
    MixtureWeights,
    all_layers,
    matrix_of,
)

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm"}
_DENSE = {"gate_proj", "up_proj", "gate_up_proj", "down_proj"}
_SPARSE = {"gate", "experts", "shared_expert", "shared_expert_gate"}


class _OtherForm(Exception):
    """A decoder is not of the common form."""


class KernelSteps:
    """Computes the steps of a decoder by kernels.

    Args:
        decoder: of transformers. The matrices that a kernel reads as one are joined; it goes on working.
        layout: of its keys and values.
        pairs: as :class:`omni_torch.api.DecoderStack` has it.
    """

    def __init__(self, decoder: Any, layout: KVLayout, pairs: bool) -> None:
        self._rotary, self._layers = decoder.rotary_emb, layout.layers
        self._axes = "mrope_section" in (getattr(decoder.config, "rope_parameters", None) or {})
        stack = _stack(decoder, layout, pairs)
        self.step = DecoderStep(lambda: stack, layout.layers)

    def run(self, batch: ForwardBatch) -> ForwardOutput | None:
        """Compute a step; ``None``: no kernel computes steps of its kind."""
        x = batch.input_embeds
        if x is None or batch.extra:
            return None
        positions = batch.positions
        if self._axes and positions.dim() == 1:
            positions = positions.expand(3, -1)
        cos, sin = self._rotary(x.unsqueeze(0), positions.unsqueeze(-2))
        return self.step.run(x, cos[0].unsqueeze(1), sin[0].unsqueeze(1), batch)


def kernel_steps(decoder: Any, layout: KVLayout, scales: Iterable[float | None], *, pairs: bool) -> KernelSteps | None:
    """Return the steps of a decoder by the installed kernels; ``None``: there are none, or it is of another form.

    Args:
        scales: of each layer's scores; ``None``: ``head_dim ** -0.5``.
        pairs: true if positions rotate neighbouring values, which a decoder does not say.
    """
    weight = next(decoder.parameters())
    if weight.device.type != "cpu" or not DecoderStep.is_installed(weight) or layout.forms:
        return None
    usual = layout.head_dim**-0.5
    if any(scale is not None and abs(scale - usual) > 1e-6 * usual for scale in scales):
        return None
    try:
        with torch.inference_mode(False), torch.no_grad():
            return KernelSteps(decoder, layout, pairs)
    except (_OtherForm, AttributeError):
        return None


def _stack(decoder: Any, layout: KVLayout, pairs: bool) -> DecoderStack:
    heads, width = layout.heads, layout.head_dim
    size = decoder.norm.weight.shape[0]
    norm, eps = _norm(decoder.norm, size)
    cos, _ = decoder.rotary_emb(torch.zeros(1, 1, size), torch.zeros(1, 1, dtype=torch.long))
    if cos.dim() != 3 or cos.shape[-1] != width:
        raise _OtherForm

    def described(layer: nn.Module) -> LayerWeights:
        return _layer(layer, layout, size, eps)

    layers = all_layers(decoder.layers, described)
    if layers is None or len(layers) != layout.layers:
        raise _OtherForm
    return DecoderStack(layers, norm, heads, layout.kv_heads, width, eps, pairs)


def _layer(layer: Any, layout: KVLayout, size: int, eps: float) -> LayerWeights:
    _only(layer, _LAYER)
    attention = layer.self_attn
    _only(attention, _ATTENTION)
    norms = [_norm(each, size, eps)[0] for each in (layer.input_layernorm, layer.post_attention_layernorm)]
    of_heads = None
    if hasattr(attention, "q_norm"):
        query, key = (_norm(each, layout.head_dim, eps)[0] for each in (attention.q_norm, attention.k_norm))
        of_heads = torch.cat([query.expand(layout.heads, -1), key.expand(layout.kv_heads, -1)]).contiguous()
    qkv = _joined(attention, ["qkv_proj"] if hasattr(attention, "qkv_proj") else ["q_proj", "k_proj", "v_proj"])
    if len(qkv.weight) != (layout.heads + 2 * layout.kv_heads) * layout.head_dim:
        raise _OtherForm
    found = LayerWeights(norms[0], norms[1], of_heads, qkv, _matrix(attention.o_proj))
    mlp = layer.mlp
    if not hasattr(mlp, "experts"):
        found.dense = _dense(mlp)
        return found
    _only(mlp, _SPARSE)
    found.mixture = _mixture(mlp)
    if hasattr(mlp, "shared_expert"):
        found.dense, found.mixture.shared_gate = _dense(mlp.shared_expert), _matrix(mlp.shared_expert_gate)
    return found


def _dense(mlp: Any) -> tuple[Matrix, Matrix]:
    _only(mlp, _DENSE)
    _check_silu(mlp)
    first = _joined(mlp, ["gate_up_proj"] if hasattr(mlp, "gate_up_proj") else ["gate_proj", "up_proj"])
    return first, _matrix(mlp.down_proj)


def _mixture(mlp: Any) -> MixtureWeights:
    experts, router = mlp.experts, mlp.gate
    _check_silu(experts)
    if {name for name, _ in experts.named_parameters()} != {"gate_up_proj", "down_proj"}:
        raise _OtherForm
    if [name for name, _ in router.named_parameters()] != ["weight"]:
        raise _OtherForm
    pairs = [
        (Matrix(first.detach()), Matrix(second.detach()))
        for first, second in zip(experts.gate_up_proj, experts.down_proj, strict=True)
    ]
    normalize = bool(getattr(router, "norm_topk_prob", getattr(mlp, "norm_topk_prob", True)))
    return MixtureWeights(Matrix(router.weight.detach()), pairs, router.top_k, normalize)


def _only(module: nn.Module, names: set[str]) -> None:
    """Raise if a module has other parameters than those of some of its children."""
    if [*module.parameters(recurse=False)]:
        raise _OtherForm
    if any(name not in names and [*child.parameters()] for name, child in module.named_children()):
        raise _OtherForm


def _check_silu(module: Any) -> None:
    activation = getattr(module, "act_fn", None) or module.activation_fn
    x = torch.linspace(-4, 4, 9)
    if not torch.allclose(activation(x), F.silu(x)):
        raise _OtherForm


def _norm(norm: Any, size: int, wanted: float | None = None) -> tuple[torch.Tensor, float]:
    """Return the weight of a root mean square norm, and its epsilon."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight: torch.Tensor = norm.weight.detach()
    if not isinstance(eps, float) or weight.shape != (size,) or wanted not in (None, eps):
        raise _OtherForm
    x = torch.linspace(-2, 3, size).roll(1).to(weight.dtype).unsqueeze(0)
    own = norm(x)
    for each in (weight, weight + 1):
        if torch.allclose(F.rms_norm(x, weight.shape, each, eps), own, rtol=1e-2, atol=1e-4):
            return each, eps
    raise _OtherForm


def _matrix(layer: nn.Module) -> Matrix:
    found = matrix_of(layer)
    if found is None:
        raise _OtherForm
    return found


def _joined(module: nn.Module, names: Sequence[str]) -> Matrix:
    """Return the matrices of linear layers above each other; the layers go on with parts of it, so that nothing is kept twice."""
    layers = [getattr(module, name) for name in names]
    parts = [_matrix(each) for each in layers]
    if len(parts) == 1:
        return parts[0]
    if any(each.scales is not None for each in parts):
        return _joined_narrow(layers, parts)
    biases = [each.bias for each in parts if each.bias is not None]
    if len(biases) not in (0, len(parts)):
        raise _OtherForm
    weight, bias = torch.cat([each.weight for each in parts]), torch.cat(biases) if biases else None
    sizes = [len(each.weight) for each in parts]
    for layer, rows in zip(layers, weight.split(sizes), strict=True):
        layer.weight = nn.Parameter(rows, requires_grad=False)
    if bias is not None:
        for layer, values in zip(layers, bias.split(sizes), strict=True):
            layer.bias = nn.Parameter(values, requires_grad=False)
    return Matrix(weight, None, bias)


def _joined_narrow(layers: Sequence[nn.Module], parts: Sequence[Matrix]) -> Matrix:
    """Do so for layers with narrow weights, which must all be of one form."""
    scales = [each.scales for each in parts if each.scales is not None]
    forms = {(each.weight.dtype, each.int8_inputs, each.bias is None) for each in parts}
    if len(scales) != len(parts) or len(forms) != 1 or len({each.dim() for each in scales}) != 1:
        raise _OtherForm
    values, factors = torch.cat([each.weight for each in parts]), torch.cat(scales)
    sizes = [len(each.weight) for each in parts]
    for layer, rows, own in zip(layers, values.split(sizes), factors.split(sizes), strict=True):
        layer.load_state_dict({VALUES[1:]: rows, SCALES[1:]: own}, strict=False, assign=True)
    biases = [each.bias for each in parts if each.bias is not None]
    return Matrix(values, factors, torch.cat(biases) if biases else None, parts[0].int8_inputs)
