"""Steps of a model's decoder by the operations ``decode_layers`` and ``prefill_layers``, where kernels for them are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from omni_core.api import CacheAttention, DecodeCache, ForwardBatch, ForwardOutput
from omni_torch.operations.decoder_stack import MOST_ROWS, DecoderStack, LayerWeights, decode_layers, prefill_layers

DescribeLayer = Callable[[Any], LayerWeights | None]
"""Returns a layer as data; ``None`` if it is sharded, or its weights are in a layout of their own."""


def all_layers(layers: Iterable[Any], describe: DescribeLayer) -> list[LayerWeights] | None:
    """Return the layers of a decoder as data; ``None`` if one cannot be described."""
    described: list[LayerWeights] = []
    for layer in layers:
        if (found := describe(layer)) is None:
            return None
        described.append(found)
    return described


class DecoderStep:
    """The layers and the last norm of a decoder, described for the operations at the first step that may use them.

    Args:
        describe: returns the decoder as data, once its weights are there; ``None`` if it is of another kind, sharded, or has
            weights in layouts of their own.
        layers: their number.
    """

    def __init__(self, describe: Callable[[], DecoderStack | None], layers: int) -> None:
        self._describe, self._layers = describe, layers
        self._stack: DecoderStack | None = None
        self._described = False

    @staticmethod
    def is_installed(x: torch.Tensor) -> bool:
        """Return whether there is a kernel for rows like these; without one nothing has to be prepared for :meth:`run`."""
        place = x.device.type, x.dtype
        return decode_layers.replaced(*place) or prefill_layers.replaced(*place)

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
            x: ``[n, hidden]``, embeddings.
            cos, sin: ``[n, 1, head_dim]``.
            capture: as the operations have it; or the number of layers, for what they return.
        """
        attention = batch.attention
        if not isinstance(attention, CacheAttention) or not self.is_installed(x):
            return None
        # A step that is recorded as a graph has no lengths: it is one of decodes.
        lengths = getattr(batch, "lengths", None)
        prompts = lengths is not None and max(lengths) > 1
        if not self.fits(x, prompts):
            return None
        cache = attention.decode_cache()
        if cache is None:
            return None
        last = capture == self._layers
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

    def compute(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: DecodeCache,
        capture: int | None = None,
        prompts: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Return what :func:`omni_torch.operations.decoder_stack.decode_layers` returns; only where :meth:`fits`."""
        assert self._stack is not None
        layers = prefill_layers if prompts else decode_layers
        return layers(x, cos, sin, *cache, self._stack, capture)
