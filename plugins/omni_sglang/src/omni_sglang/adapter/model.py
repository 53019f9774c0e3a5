"""The model that SGLang runs: its attention over its own KV pool, around a call of the stage's model runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.models.registry import ModelRegistry
from torch import nn


@frozen
class Chosen:
    """The outcome of a step for a request: its next token, and whether that was its last."""

    token: int
    last: bool


class RadixPagedAttention:
    """SGLang's attention over its own KV pool, as :class:`omni_core.model_runner.PagedAttention`."""

    def __init__(self, layers: nn.ModuleList, batch: ForwardBatch) -> None:
        self._layers, self.batch = layers, batch

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        count, heads, width = query.shape
        if scale is not None:  # SGLang's layers have head_dim ** -0.5 built in
            query = query * (scale * width**0.5)
        mixed = self._layers[layer](
            query.reshape(count, heads * width), key.contiguous(), value.contiguous(), self.batch
        )
        return mixed.view(count, heads, width)


@frozen
class Step:
    """One step of SGLang's batch: for each request the number of cached positions and the number to compute now."""

    keys: list[str]
    starts: list[int]
    lengths: list[int]
    attention: RadixPagedAttention


Compute = Callable[[Step], dict[str, Chosen]]
"""Computes a step; returns the requests whose next token was chosen."""


class OmniDecoder(nn.Module):
    """The model that SGLang runs: attention layers without weights around a call of ``compute``.

    Tokens are chosen by the model runner (its penalties, its random numbers), so SGLang, which decodes every request
    greedily here, is given logits whose largest is the chosen token.
    """

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.attention = nn.ModuleList(
            [
                RadixAttention(
                    config.num_attention_heads,
                    config.head_dim,
                    config.head_dim**-0.5,
                    config.num_key_value_heads,
                    layer_id=layer,
                )
                for layer in range(config.num_hidden_layers)
            ]
        )
        self.vocab_size = config.vocab_size
        self.compute: Compute | None = None
        self.chosen: dict[str, Chosen] = {}

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: ForwardBatch) -> Any:
        logits = torch.zeros(forward_batch.batch_size, self.vocab_size, device=input_ids.device)
        if self.compute is not None:  # else SGLang warms up
            keys = list(forward_batch.rids)
            starts, lengths = _spans(forward_batch)
            attention = RadixPagedAttention(self.attention, forward_batch)
            self.chosen = self.compute(Step(keys, starts, lengths, attention))
            rows = [row for row, key in enumerate(keys) if key in self.chosen]
            logits[rows, [self.chosen[keys[row]].token for row in rows]] = 1.0
        return LogitsProcessorOutput(next_token_logits=logits)


def _spans(forward_batch: ForwardBatch) -> tuple[list[int], list[int]]:
    """For each request: positions computed before this step, positions of this step."""
    if forward_batch.forward_mode.is_decode():
        return [length - 1 for length in forward_batch.seq_lens_cpu.tolist()], [1] * forward_batch.batch_size
    return list(forward_batch.extend_prefix_lens_cpu), list(forward_batch.extend_seq_lens_cpu)


ModelRegistry.models[OmniDecoder.__name__] = OmniDecoder
