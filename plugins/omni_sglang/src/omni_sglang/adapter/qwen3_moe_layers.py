"""SGLang's own Qwen3-MoE decoder: its layers, with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.models.qwen3_vl_moe import Qwen3MoeLLMModel
from torch import nn

from omni_sglang.adapter.model import RadixPagedAttention

ReadWeight = Callable[[str, torch.Size], torch.Tensor]
"""Reads a network's weight by name and shape. Names are those of transformers' modules, experts stacked
(``experts.gate_up_proj``).
"""


def build_qwen3_moe(config: Any, read: ReadWeight, dtype: torch.dtype, device: torch.device, capture: int) -> nn.Module:
    """SGLang's own Qwen3-MoE decoder with multimodal rotary positions and deepstack, with its weights. Needs a
    :class:`Runtime`.

    Args:
        config: transformers' text config of the checkpoint.
        capture: the layer whose input is returned with every output (``hidden_states`` index of transformers).
    """
    with set_default_torch_dtype(dtype), device:
        network = Qwen3MoeLLMModel(config=config)
    for name, parameter in network.named_parameters():
        stacked = name.replace("experts.w13_weight", "experts.gate_up_proj")
        weight = read(stacked.replace("experts.w2_weight", "experts.down_proj"), parameter.shape)
        parameter.data[: len(weight)].copy_(weight)  # the embedding may be padded to a multiple of rows
    for module in network.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)
    network.set_eagle3_layers_to_capture([capture])
    return network.eval().requires_grad_(False)


def run_qwen3_moe(
    network: nn.Module,
    attention: RadixPagedAttention,
    embeds: torch.Tensor,
    positions: torch.Tensor,
    deepstack: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normed output and the captured layer, ``[n, hidden]`` each.

    Args:
        embeds: ``[n, hidden]``.
        positions: ``[3, n]``.
        deepstack: ``[n, 3 * hidden]``, added after the first three layers.
    """
    hidden, captured = network(None, positions, attention.batch, embeds, input_deepstack_embeds=deepstack)
    return hidden, captured[0]
