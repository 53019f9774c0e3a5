"""The attention of decode steps that a recorded graph replays: its tensors stay at the same addresses, and their
content changes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch

from omni_core.model_runner import ARRequest
from omni_engine.attention.base import AttentionBackend, StepAttention
from omni_engine.kv_cache import KVCache


class DecodeTables:
    """The cache slots that the rows of a decode step read and write. Padding rows read the blocks of ``padding_row``
    and write to scratch.

    Attributes:
        pages: ``[rows, width]`` int32, each row's blocks; entries beyond its length are stale.
        lengths: ``[rows]`` int32, positions that each row attends to. writes: ``[rows]`` int64, the slot of its newest position.
        host_pages, host_lengths: the same on the host.
    """

    def __init__(self, cache: KVCache, rows: int, positions: int) -> None:
        self.cache, device = cache, cache.keys[0].device
        self.width = min(cache.blocks_for(positions), cache.pool.total)
        self.host_pages = torch.zeros(rows, self.width, dtype=torch.int32)
        self.host_lengths = torch.ones(rows, dtype=torch.int32)
        self.pages, self.lengths = self.host_pages.to(device, copy=True), self.host_lengths.to(device, copy=True)
        self.writes = torch.zeros(rows, dtype=torch.int64, device=device)
        self._blocks: list[list[int]] = [[] for _ in range(rows)]
        self._known = [0] * rows

    def fill(self, requests: list[ARRequest], starts: list[int], rows: int, padding_row: int) -> None:
        """Fill the first ``rows`` rows with those of ``requests`` at ``starts``, padded with copies of request number
        ``padding_row``.
        """
        cache, padding = self.cache, rows - len(requests)
        blocks = [cache.blocks(request.request_id) for request in requests]
        writes = [
            table[start // cache.block_size] * cache.block_size + start % cache.block_size
            for table, start in zip(blocks, starts, strict=True)
        ]
        self.writes[:rows] = torch.tensor([*writes, *range(cache.scratch, cache.scratch + padding)])
        seen = [start + 1 for start in starts]
        self.host_lengths[:rows] = torch.tensor([*seen, *[seen[padding_row]] * padding], dtype=torch.int32)
        self.lengths[:rows] = self.host_lengths[:rows]
        changed = [self._list(row, table) for row, table in enumerate([*blocks, *[blocks[padding_row]] * padding])]
        if any(changed):
            self.pages[:rows] = self.host_pages[:rows]

    def _list(self, row: int, blocks: list[int]) -> bool:
        """Write a request's blocks into a row, and return True if any is new there. A table only ever grows."""
        known = self._known[row] if self._blocks[row] is blocks else 0
        self._blocks[row], self._known[row] = blocks, len(blocks)
        if known < len(blocks):
            self.host_pages[row, known : len(blocks)] = torch.tensor(blocks[known:], dtype=torch.int32)
        return known < len(blocks)


class StaticAttention(StepAttention):
    """The attention of ``rows`` decodes over the first ``width`` pages of tables."""

    any_width: ClassVar[bool] = False
    """True if a plan for the widest tables is as fast as one for the width of a step's requests."""

    def __init__(self, backend: AttentionBackend, tables: DecodeTables, rows: int, width: int) -> None:
        super().__init__(backend.cache, [], [], [])
        self.tables, self.rows, self.width = tables, rows, width
        self._write = tables.writes[:rows]

    def refill(self) -> None:
        """Do the host's part of the plan, before each replay, after the tables were filled."""

    def begin(self) -> None:
        """Compute on the device what the layers share, from the tables. Recorded, before the layers."""

    @abstractmethod
    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        """Attend with ``query``: ``[rows, heads, head_dim]``. Recorded: it must not synchronise with the host."""


class DeferredAttention(StepAttention):
    """A backend's plan of a step, made when a layer first uses it; a replayed step never does."""

    def __init__(
        self, backend: AttentionBackend, requests: list[ARRequest], starts: list[int], lengths: list[int]
    ) -> None:
        super().__init__(backend.cache, requests, starts, lengths)
        self._backend = backend
        self._planned: StepAttention | None = None

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        if self._planned is None:
            self._planned = self._backend.plan(*self._step)
        return self._planned.attend(layer, query, scale)
