"""The attention of decode steps that a recorded graph replays: its tensors stay at the same addresses, and their
content changes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch

from omni_core.api import ARRequest, DecodeCache
from omni_torch.engine.attention.base import AttentionBackend, StepAttention
from omni_torch.engine.kv_cache import KVCache
from omni_torch.runners.transfers import copy_into


class DecodeTables:
    """The cache slots that the rows of a decode step read and write. Padding rows read the blocks of ``padding_row``
    and write to scratch.

    Attributes:
        pages: ``[rows, width]`` int32, each row's blocks; entries beyond its length are stale.
        writes: ``[rows]`` int64, the slot of each row's newest position.
        lengths: ``[rows]`` int32, positions that it attends to.
        host_pages, host_lengths: the same on the host.
    """

    def __init__(self, cache: KVCache, rows: int, positions: int) -> None:
        self.cache, device = cache, cache.keys[0].device
        self.width = min(cache.blocks_for(positions), cache.pool.total)
        self.host_pages = torch.zeros(rows, self.width, dtype=torch.int32)
        self.pages = self.host_pages.to(device, copy=True)
        self._host_rows = torch.zeros(3 * rows, dtype=torch.int32)
        self._host_writes, self.host_lengths = _writes_and_lengths(self._host_rows)
        self.host_lengths.fill_(1)
        self._rows = self._host_rows.to(device, copy=True)
        self.writes, self.lengths = _writes_and_lengths(self._rows)
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
        self._host_writes[:rows] = torch.tensor([*writes, *range(cache.scratch, cache.scratch + padding)])
        seen = [start + 1 for start in starts]
        self.host_lengths[:rows] = torch.tensor([*seen, *[seen[padding_row]] * padding], dtype=torch.int32)
        copy_into(self._rows, self._host_rows)
        changed = [self._list(row, table) for row, table in enumerate([*blocks, *[blocks[padding_row]] * padding])]
        if any(changed):
            copy_into(self.pages[:rows], self.host_pages[:rows])

    def _list(self, row: int, blocks: list[int]) -> bool:
        """Write a request's blocks into a row, and return True if any is new there. A table only ever grows."""
        known = self._known[row] if self._blocks[row] is blocks else 0
        self._blocks[row], self._known[row] = blocks, len(blocks)
        if known < len(blocks):
            self.host_pages[row, known : len(blocks)] = torch.tensor(blocks[known:], dtype=torch.int32)
        return known < len(blocks)


def _writes_and_lengths(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two parts of one int32 tensor, which is sent as a whole: int64 for two thirds, int32 for the rest."""
    count = len(rows) // 3
    return rows[: 2 * count].view(torch.int64), rows[2 * count :]


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
        """Begin a step: what the layers share is computed from the tables, on the device, by the first that attends. Recorded."""

    def decode_cache(self) -> DecodeCache:
        pages, lengths = self.tables.pages[: self.rows, : self.width], self.tables.lengths[: self.rows]
        return DecodeCache(pages, lengths, self.cache.block_size, self.cache.keys, self.cache.values)

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

    def written_at(self, slots: torch.Tensor) -> None:
        """Take the cache slots of the step's positions, ``[n]``, from the device. To send them while a graph runs would wait for
        its end.
        """
        self._write = slots

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        if self._planned is None:
            self._planned = self._backend.plan(*self._step)
        return self._planned.attend(layer, query, scale)
