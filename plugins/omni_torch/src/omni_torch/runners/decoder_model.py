"""Decoders whose layers follow each other, on the contract of models: what their networks have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from omni_core.api import ForwardBatch, ForwardOutput, KVLayout
from omni_torch.operations.decoder_stack import DecoderStack
from omni_torch.operations.decoder_step import DecoderStep


class Dimensions(Protocol):
    """The sizes of a decoder; of a tensor parallel rank, those of its part."""

    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


class DecoderModel(nn.Module):
    """An :class:`omni_core.model_runner.ARModel` without ``embed`` and ``compute_logits``, which a subclass adds.

    Args:
        dimensions: its sizes.
        model: has ``layers``, each called with rows ``[n, hidden]``, cosines, sines and the batch's attention, and ``norm``.
        rotary: returns cosines and sines, ``[n, 1, head_dim]`` each, of positions and a dtype.
        describe: returns the layers as data, or ``None``; see :class:`omni_torch.operations.decoder_step.DecoderStep`.
    """

    model: Any
    rotary: Any

    def __init__(
        self, dimensions: Dimensions, model: nn.Module, rotary: nn.Module, describe: Callable[[], DecoderStack | None]
    ) -> None:
        super().__init__()
        self.model, self.rotary = model, rotary
        self.hidden_size, self.vocab_size = dimensions.hidden_size, dimensions.vocab_size
        self._layout = dimensions.layers, dimensions.kv_heads, dimensions.head_dim
        self._heads = dimensions.heads
        self.step = DecoderStep(describe, dimensions.layers)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it computes in."""
        dtype: torch.dtype = self.model.norm.weight.dtype
        return dtype

    @property
    def kv_layout(self) -> KVLayout:
        """The shape of the cache of a token."""
        return KVLayout(*self._layout, self.dtype, self._heads)

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Compute a step; by a kernel for all layers, where one is installed."""
        assert batch.input_embeds is not None
        x = batch.input_embeds
        cos, sin = self.rotary(batch.positions, x.dtype)
        if (output := self.step.run(x, cos, sin, batch)) is not None:
            return output
        for layer in self.model.layers:
            x = layer(x, cos, sin, batch.attention)
        return ForwardOutput(self.model.norm(x))
