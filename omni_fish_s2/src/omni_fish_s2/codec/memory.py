"""Keeps the state of causal layers between chunks, so that decoding in chunks of any size equals a single pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import define, field


@define(eq=False)
class StreamState:
    """The state of one stream between two chunks.

    Attributes:
        kept: the state of each causal layer, in the order in which the layers run; empty at the beginning.
        positions: the number of positions that each transformer has seen, in the same order.
    """

    kept: list[torch.Tensor] = field(factory=list)
    positions: list[int] = field(factory=list)


class Memory:
    """The states of a batch of streams during one chunk. Layers call :meth:`join` and :meth:`advance` in a fixed order."""

    def __init__(self, states: Sequence[StreamState]) -> None:
        self._states = states
        self._kept: list[torch.Tensor] = []
        self._positions: list[list[int]] = []

    def join(self, x: torch.Tensor, count: int, dim: int = -1) -> torch.Tensor:
        """Return ``x`` preceded by the last ``count`` columns of ``dim`` that this layer saw before; zeros at a
        stream's beginning.
        """
        layer = len(self._kept)
        shape = list(x.shape)
        shape[0], shape[dim] = 1, count
        before = [state.kept[layer] if state.kept else x.new_zeros(shape) for state in self._states]
        joined = torch.cat([torch.cat(before) if len(before) > 1 else before[0], x], dim=dim)
        self._kept.append(joined.narrow(dim, joined.shape[dim] - count, count))
        return joined

    def together(self, empty: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the memory that layers share and write, ``[B, ...]``; ``empty`` makes a stream's, ``[1, ...]``, at its beginning."""
        layer = len(self._kept)
        before = [state.kept[layer] if state.kept else empty() for state in self._states]
        self._kept.append(torch.cat(before) if len(before) > 1 else before[0].clone())
        return self._kept[-1]

    def advance(self, count: int) -> list[int]:
        """Return the position of each stream's first new element in this transformer, and add ``count`` to it."""
        layer = len(self._positions)
        starts = [state.positions[layer] if state.positions else 0 for state in self._states]
        self._positions.append([start + count for start in starts])
        return starts

    def save(self) -> None:
        """Write the new states back at the end of the chunk."""
        for index, state in enumerate(self._states):
            state.kept = [self._of(each, index) for each in self._kept]
            state.positions = [each[index] for each in self._positions]

    def _of(self, kept: torch.Tensor, index: int) -> torch.Tensor:
        """Return a stream's share of a layer's state; a copy, where it is a part of more."""
        whole = len(self._states) == 1 and kept.untyped_storage().nbytes() == kept.nbytes
        return kept if whole else kept[index : index + 1].clone()
