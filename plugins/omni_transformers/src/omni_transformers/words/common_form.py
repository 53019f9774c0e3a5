"""Decoders of the common form as data for the kernels that compute all layers of a step: found by their modules, checked by numbers.

The form: RMS norms, rotary positions over whole heads, grouped heads, a gated feed-forward (silu) or experts of that form, as Llama,
Qwen, Mistral, Phi-3 and most others have it. Nothing here knows a model by name.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import nn

from omni_torch.api import DecoderStack, LayerWeights, MixtureWeights, matrix_of, prefill_layers
from omni_torch.api import Matrix as Weights

_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_FUSED_ATTENTION = {"qkv_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ROWS = 7
_EXACT, _ROUNDED = 1e-5, 0.02
"""The largest relative error in float32, and with narrower values or weights."""


@frozen(eq=False)
class CommonForm:
    """A decoder as data.

    Attributes:
        stack: its layers and last norm.
        rotary: its module of rotary positions.
        interleaved: true if that gives each angle twice in a row, and not all of them twice.
    """

    stack: DecoderStack
    rotary: Any
    interleaved: bool

    def angles(self, rows: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines as the operations read them, ``[n, 1, head_dim]`` each with equal halves.

        Args:
            rows: ``[n, hidden]``, of the dtype and on the device of the step.
            positions: ``[n]``, or ``[3, n]`` of three axes.
        """
        given = positions.unsqueeze(0) if positions.dim() == 1 else positions.unsqueeze(1)
        cos, sin = (each.reshape(len(rows), 1, -1) for each in self.rotary(rows.unsqueeze(0), given)[:2])
        if self.interleaved:
            cos, sin = (torch.cat([each[..., ::2], each[..., ::2]], -1) for each in (cos, sin))
        return cos, sin


def described(decoder: Any) -> CommonForm | None:
    """Return a decoder's layers and last norm as data; ``None``: it is of another form.

    Separate matrices of queries, keys and values become parts of one, as do gates and ups; the modules keep views of them.
    """
    layers: Any = getattr(decoder, "layers", None)
    norm: Any = getattr(decoder, "norm", None)
    if not isinstance(layers, nn.ModuleList) or not _is_norm(norm) or not hasattr(decoder, "rotary_emb"):
        return None
    found = [_layer(each) for each in layers]
    if not found or None in found:
        return None
    attention: Any = layers[0].self_attn
    width: int = attention.head_dim
    kv_heads = attention.config.num_key_value_heads
    eps = {_eps(each) for layer in layers for each in (layer.input_layernorm, layer.post_attention_layernorm)}
    if len(eps | {_eps(norm)}) != 1:
        return None
    heads = attention.config.num_attention_heads
    weights = [each for each in found if each is not None]
    forms = [
        CommonForm(
            DecoderStack(weights, norm.weight.detach(), heads, kv_heads, width, _eps(norm), pairs),
            decoder.rotary_emb,
            interleaved,
        )
        for pairs in (False, True)
        for interleaved in (False, True)
    ]
    try:
        error, nearest = min(((_error(decoder, each), each) for each in forms), key=itemgetter(0))
    except (RuntimeError, IndexError, TypeError):  # its positions are of another form
        return None
    is_exact = norm.weight.dtype == torch.float32 and all(each.qkv.scales is None for each in weights)
    return nearest if error < (_EXACT if is_exact else _ROUNDED) else None


def _layer(layer: Any) -> LayerWeights | None:
    if _names(layer) != _LAYER or not (_is_norm(layer.input_layernorm) and _is_norm(layer.post_attention_layernorm)):
        return None
    attention = layer.self_attn
    names = _names(attention)
    of_heads = None
    if names >= _HEAD_NORMS:
        names -= _HEAD_NORMS
        of_heads = _head_norms(attention)
        if of_heads is None:
            return None
    if getattr(attention, "scaling", None) != attention.head_dim**-0.5 or getattr(attention, "sliding_window", None):
        return None
    if names == _ATTENTION:
        qkv = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
    elif names == _FUSED_ATTENTION:
        qkv = _matrix(attention.qkv_proj)
    else:
        return None
    output, dense, mixture = _matrix(attention.o_proj), _gated(layer.mlp), _mixture(layer.mlp, attention.config)
    if qkv is None or output is None or (dense is None) == (mixture is None):
        return None
    norms = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
    return LayerWeights(*norms, of_heads, qkv, output, dense, mixture)


def _names(module: nn.Module) -> set[str]:
    """Return the names of its modules that have weights."""
    return {name for name, child in module.named_children() if child.state_dict()}


def _gated(block: Any) -> tuple[Weights, Weights] | None:
    names = _names(block)
    if not _is_silu(getattr(block, "act_fn", getattr(block, "activation_fn", None))):
        return None
    if names == {"gate_proj", "up_proj", "down_proj"}:
        gate_up = _joined([block.gate_proj, block.up_proj])
    elif names == {"gate_up_proj", "down_proj"}:
        gate_up = _matrix(block.gate_up_proj)
    else:
        return None
    down = _matrix(block.down_proj)
    return None if gate_up is None or down is None else (gate_up, down)


def _mixture(block: Any, config: Any) -> MixtureWeights | None:
    """Return the experts of a sparse block without a shared expert, whose matrices are stacked."""
    experts = getattr(block, "experts", None)
    gate_up, down = getattr(experts, "gate_up_proj", None), getattr(experts, "down_proj", None)
    router = getattr(getattr(block, "gate", getattr(block, "router", None)), "weight", None)
    if _names(block) not in ({"gate", "experts"}, {"router", "experts"}) or router is None:
        return None
    if not (isinstance(gate_up, nn.Parameter) and isinstance(down, nn.Parameter) and gate_up.dim() == down.dim() == 3):
        return None
    if not _is_silu(getattr(experts, "act_fn", None)) or len(vars(experts)["_parameters"]) != 2:
        return None
    each = [(Weights(up.detach()), Weights(back.detach())) for up, back in zip(gate_up, down, strict=True)]
    return MixtureWeights(
        Weights(router.detach()), each, config.num_experts_per_tok, getattr(config, "norm_topk_prob", True)
    )


def _is_silu(function: Any) -> bool:
    given = torch.linspace(-4, 4, 9)
    return callable(function) and torch.equal(function(given), F.silu(given))


def _matrix(layer: Any) -> Weights | None:
    found: Weights | None = matrix_of(layer)
    return found


def _joined(layers: list[Any]) -> Weights | None:
    """Join linear layers along their outputs; the weights of plain ones become views."""
    if any(type(each) is not nn.Linear for each in layers):
        return _joined_narrow([matrix_of(each) for each in layers])
    if len({each.bias is None for each in layers}) != 1:
        return None
    with torch.no_grad():
        weight = torch.cat([each.weight for each in layers])
        bias = None if layers[0].bias is None else torch.cat([each.bias for each in layers])
    start = 0
    for each in layers:
        end = start + each.out_features
        each.weight = nn.Parameter(weight[start:end], requires_grad=False)
        if bias is not None:
            each.bias = nn.Parameter(bias[start:end], requires_grad=False)
        start = end
    return Weights(weight, None, bias)


def _joined_narrow(matrices: list[Weights | None]) -> Weights | None:
    """Join matrices with scales, if all are of one form; ``None`` otherwise."""
    weights, scales, biases, forms = [], [], [], set()
    for each in matrices:
        if each is None or each.scales is None:
            return None
        weights.append(each.weight)
        scales.append(each.scales)
        biases.append(each.bias)
        forms.add((each.weight.dtype, each.scales.dim(), each.bias is None, each.int8_inputs))
    if len(forms) != 1:
        return None
    bias = None if biases[0] is None else torch.cat([each for each in biases if each is not None])
    return Weights(torch.cat(weights), torch.cat(scales), bias, forms.pop()[-1])


def _head_norms(attention: Any) -> torch.Tensor | None:
    query, key, width = attention.q_norm, attention.k_norm, attention.head_dim
    if not (_is_norm(query) and _is_norm(key)) or query.weight.shape != (width,) or key.weight.shape != (width,):
        return None
    config = attention.config
    rows = [query.weight.detach()] * config.num_attention_heads + [key.weight.detach()] * config.num_key_value_heads
    return torch.stack(rows)


def _is_norm(module: Any) -> bool:
    return isinstance(module, nn.Module) and type(module).__name__.endswith("RMSNorm") and hasattr(module, "weight")


def _eps(norm: Any) -> float:
    return float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)) or 0.0)


@torch.inference_mode()
def _error(decoder: Any, form: CommonForm) -> float:
    """Return the relative error of what the data computes, against the decoder's own forward on random rows."""
    stack = form.stack
    like = stack.norm
    rows = torch.randn((_ROWS, len(like)), generator=torch.Generator().manual_seed(0)).to(like)
    positions = torch.arange(_ROWS, device=like.device).unsqueeze(0)
    cos, sin = form.angles(rows, positions[0])
    if cos.shape != (_ROWS, 1, stack.head_dim):
        return math.inf
    keys, values = (torch.zeros((len(stack.layers), _ROWS, stack.kv_heads, stack.head_dim)).to(like) for _ in range(2))
    pages, lengths = torch.zeros((_ROWS, 1), dtype=torch.int32, device=like.device), positions[0].int() + 1
    found = prefill_layers.reference(rows, cos, sin, pages, lengths, _ROWS, keys, values, stack)[0]
    own = decoder.config._attn_implementation
    decoder.config._attn_implementation = "sdpa"
    try:
        expected = decoder(inputs_embeds=rows.unsqueeze(0), position_ids=positions, use_cache=False).last_hidden_state[
            0
        ]
    finally:
        decoder.config._attn_implementation = own
    return float((found.float() - expected.float()).norm() / expected.float().norm())
