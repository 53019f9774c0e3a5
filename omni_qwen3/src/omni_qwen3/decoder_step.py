"""Steps of a Qwen decoder by the operations ``decode_layers`` and ``prefill_layers``, where kernels for them are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from omni_core.model_runner import CacheAttention, DecodeCache, ForwardBatch, ForwardOutput
from omni_qwen3.config import DecoderConfig
from omni_qwen3.layers import MLP, DecoderLayer, RMSNorm, SparseMLP
from omni_torch.decoder_stack import (
    MOST_ROWS,
    DecoderStack,
    LayerWeights,
    MixtureWeights,
    decode_layers,
    prefill_layers,
)
from omni_torch.few_rows import Matrix, matrix_of

DescribeLayer = Callable[[Any], LayerWeights | None]
"""Returns a layer as data; ``None`` if it is sharded, or its weights are in a layout of their own."""


class DecoderStep:
    """The layers and the last norm of a decoder, described for the operation at the first step that may use it.

    ``describe_layer``: of layers that are not Qwen3's.
    """

    def __init__(
        self, config: DecoderConfig, layers: nn.ModuleList, norm: RMSNorm, describe_layer: DescribeLayer | None = None
    ) -> None:
        self._config, self._layers, self._norm = config, layers, norm
        self._describe_layer = describe_layer or qwen3_layer
        self._stack: DecoderStack | None = None
        self._described = False

    def run(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        batch: ForwardBatch,
        capture: int | None = None,
    ) -> ForwardOutput | None:
        """Compute a step, or return ``None``: no kernel is installed, or the layers are of another kind.

        Args:
            x: ``[n, hidden]``, embeddings. cos, sin: ``[n, 1, head_dim]``. capture: as :class:`omni_qwen3.thinker_network.Thinker` has it.
        """
        attention, place = batch.attention, (x.device.type, x.dtype)
        replaced = decode_layers.replaced(*place) or prefill_layers.replaced(*place)
        # The lengths are not there while a step is recorded as a graph, which is where no kernel of this kind is.
        if not isinstance(attention, CacheAttention) or not replaced:
            return None
        prompts = max(batch.lengths) > 1
        if not self.fits(x, prompts):
            return None
        cache = attention.decode_cache()
        if cache is None:
            return None
        last = capture == len(self._layers)
        hidden, *captured = self.compute(x, cos, sin, cache, None if last else capture, prompts)
        if capture is None:
            return ForwardOutput(hidden)
        return ForwardOutput(hidden, {capture: hidden if last else captured[0]})

    def fits(self, x: torch.Tensor, prompts: bool = False) -> bool:
        """Return whether a kernel computes steps of these rows: one of each request, or with ``prompts`` runs of them."""
        if not (prefill_layers if prompts else decode_layers).replaced(x.device.type, x.dtype):
            return False
        if len(x) > MOST_ROWS and not prompts:
            return False
        return self.stack is not None

    @property
    def stack(self) -> DecoderStack | None:
        """The layers as data; ``None`` if they are of another kind."""
        if not self._described:
            self._stack, self._described = self._describe(), True
        return self._stack

    def _describe(self) -> DecoderStack | None:
        config = self._config
        if config.activation != "silu":
            return None
        layers: list[LayerWeights] = []
        for layer in self._layers:
            if (found := self._describe_layer(layer)) is None:
                return None
            layers.append(found)
        norm = self._norm.weight.detach()
        return DecoderStack(layers, norm, config.heads, config.kv_heads, config.head_dim, config.norm_eps)

    def compute(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: DecodeCache,
        capture: int | None = None,
        prompts: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Return what :func:`omni_torch.decoder_stack.decode_layers` returns; only where :meth:`fits`."""
        assert self._stack is not None
        layers = prefill_layers if prompts else decode_layers
        return layers(x, cos, sin, *cache, self._stack, capture)


def qwen3_layer(layer: nn.Module) -> LayerWeights | None:
    """A :data:`DescribeLayer`."""
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
