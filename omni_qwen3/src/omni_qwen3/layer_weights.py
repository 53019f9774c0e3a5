"""The layers of Qwen decoders as data, for :class:`omni_torch.operations.decoder_step.DecoderStep`."""

from __future__ import annotations

from torch import nn

from omni_qwen3.config import DecoderConfig
from omni_qwen3.layers import MLP, DecoderLayer, SparseMLP
from omni_torch.api import (
    DecoderStack,
    DescribeLayer,
    LayerWeights,
    Matrix,
    MixtureWeights,
    RMSNorm,
    all_layers,
    matrix_of,
)


def describe(
    config: DecoderConfig, layers: nn.ModuleList, norm: RMSNorm, describe_layer: DescribeLayer | None = None
) -> DecoderStack | None:
    """Return a decoder as data; ``None`` if it has another activation, or a layer cannot be described.

    Args:
        describe_layer: of layers that are not Qwen3's.
    """
    if config.activation != "silu":
        return None
    if (described := all_layers(layers, describe_layer or qwen3_layer)) is None:
        return None
    weight = norm.weight.detach()
    return DecoderStack(described, weight, config.heads, config.kv_heads, config.head_dim, config.norm_eps)


def qwen3_layer(layer: nn.Module) -> LayerWeights | None:
    """A :data:`omni_torch.operations.decoder_step.DescribeLayer`."""
    assert isinstance(layer, DecoderLayer)
    attention, mlp = layer.self_attn, layer.mlp
    qkv, output = matrix_of(attention.qkv_proj), matrix_of(attention.o_proj)
    if layer.parallel.size > 1 or qkv is None or output is None:
        return None
    norms = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
    found = LayerWeights(*norms, attention.head_weights().detach(), qkv, output)
    if isinstance(mlp, MLP):
        found.dense = dense_matrices(mlp)
        return None if found.dense is None else found
    assert isinstance(mlp, SparseMLP)
    experts = [(first, second) for first, second in mlp.experts.matrices() if first is not None and second is not None]
    router = Matrix(mlp.gate.weight.detach())
    if len(experts) < len(router.weight):
        return None
    found.mixture = MixtureWeights(router, experts, mlp.gate.top_k, mlp.gate.normalize)
    if mlp.has_shared:
        found.dense, found.mixture.shared_gate = dense_matrices(mlp.shared_expert), matrix_of(mlp.shared_expert_gate)
        if found.dense is None or found.mixture.shared_gate is None:
            return None
    return found


def dense_matrices(mlp: MLP) -> tuple[Matrix, Matrix] | None:
    """Return the matrices of a feed-forward block; ``None`` if one is in a layout of its own."""
    first, second = matrix_of(mlp.gate_up_proj), matrix_of(mlp.down_proj)
    return None if first is None or second is None else (first, second)
