"""The decoder of Qwen3-Omni's thinker on SGLang's own layers: fused projections, norms and experts on a GPU that has
them.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from omni_core.api import ConfigError, ForwardBatch, ForwardOutput, InvalidRequestError, KVLayout
from omni_sglang.adapter.model import RadixPagedAttention
from omni_sglang.adapter.qwen3_moe_layers import ReadWeight, build_qwen3_moe, run_qwen3_moe

DEEPSTACK_LAYERS = 3
"""The number of layers after which SGLang's decoder adds deepstack features."""


class Qwen3MoeDecoder:
    """An :class:`omni_core.model_runner.ARModel` on SGLang's layers; it computes on :class:`OmniScheduler` only.

    SGLang's layers need its parallel state, so the network is made and its weights are read by :meth:`build`, which the
    scheduler calls once it is up. ``batch.extra`` may hold ``deepstack``: ``(rows, [features per layer])``, and
    ``capture``.

    Args:
        config: transformers' text config.
        read: reads a weight by its name (below the decoder) and shape.
        head: the output matrix, ``[vocab, hidden]``.
        capture: the layer whose input is captured for every batch.
        deepstack: the number of layers after which features are added.

    Raises:
        ConfigError: SGLang's decoder does not support so many deepstack features, or cannot capture layer ``capture``: it captures the
            input of a layer, features included, but not the output of the last layer.
    """

    required_scheduler = "omni_sglang.scheduler:OmniScheduler"

    def __init__(
        self, config: Any, read: ReadWeight, head: torch.Tensor, *, capture: int, deepstack: int, device: torch.device
    ) -> None:
        for field, is_computed in (
            ("mlp_only_layers", not config.mlp_only_layers),
            ("attention_bias", not config.attention_bias),
            ("hidden_act", config.hidden_act == "silu"),
        ):
            if not is_computed:
                value = getattr(config, field)
                raise ConfigError(
                    f"config.json: text_config.{field} {value!r}: SGLang's layers do not compute it; leave `decoder` unset"
                )
        if deepstack > DEEPSTACK_LAYERS:
            raise ConfigError(f"{deepstack} deepstack layers: SGLang's decoder supports {DEEPSTACK_LAYERS}")
        if not deepstack < capture < config.num_hidden_layers:
            raise ConfigError(
                f"hidden state {capture} of {config.num_hidden_layers} layers cannot be captured on SGLang's layers: only those "
                f"from {deepstack + 1} to {config.num_hidden_layers - 1} can"
            )
        self._config = deepcopy(config)
        self._config.rope_parameters = {
            **config.rope_parameters,
            "mrope_interleaved": True,
        }  # absent in some checkpoints
        self._read, self._capture, self._device = read, capture, device
        self._head = head.to(device)
        self._network: nn.Module | None = None
        self.hidden_size, self.vocab_size = config.hidden_size, len(head)

    @property
    def kv_layout(self) -> KVLayout:
        config, dtype = self._config, self._head.dtype
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        return KVLayout(layers, config.num_key_value_heads, config.head_dim, dtype, heads)

    def build(self) -> None:
        """Make the network and read its weights."""
        self._network = build_qwen3_moe(self._config, self._read, self._head.dtype, self._device, self._capture)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        assert self._network is not None
        embeds: torch.Tensor = self._network.get_submodule("embed_tokens")(ids)
        return embeds

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        assert self._network is not None
        assert batch.input_embeds is not None
        assert isinstance(batch.attention, RadixPagedAttention)
        if batch.positions.is_floating_point():
            raise InvalidRequestError(
                "the video's time steps fall between whole rotary positions, which SGLang's layers cannot compute; "
                "leave `decoder` unset, or use `video_fps: 1` or `2`"
            )
        positions = batch.positions.expand(3, -1) if batch.positions.dim() == 1 else batch.positions
        hidden, captured = run_qwen3_moe(
            self._network, batch.attention, batch.input_embeds, positions.contiguous(), self._deepstack(batch)
        )
        wanted = batch.extra.get("capture")
        return ForwardOutput(hidden, {} if wanted is None else {wanted: captured})

    def _deepstack(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Return deepstack features in SGLang's layout: a row per position, the layers side by side, zeros where there
        are none.
        """
        if "deepstack" not in batch.extra:
            return None
        rows, features = batch.extra["deepstack"]
        assert batch.input_embeds is not None
        wide = batch.input_embeds.new_zeros(len(batch.input_embeds), DEEPSTACK_LAYERS * self.hidden_size)
        wide[rows, : len(features) * self.hidden_size] = torch.cat(features, dim=-1)
        return wide

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._head.T
