"""The contract of attention backends: a backend plans a step once, and every layer of the step calls the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from omni_core.api import ARRequest, CacheAttention, KVLayout
from omni_torch.engine.kv_cache import KVCache
from omni_torch.loop.packing import indices
from omni_torch.runners.transfers import to_device

if TYPE_CHECKING:
    from omni_torch.engine.attention.static import StaticAttention


class StepAttention(CacheAttention):
    """The attention of one step's batch."""

    def __init__(self, cache: KVCache, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> None:
        self.cache, self._step = cache, (requests, starts, lengths)

    @cached_property
    def _write(self) -> torch.Tensor:
        """Cache slots of the step's positions, ``[n]``. Computed on first use, because a replayed step may not need
        them.
        """
        writes: list[int] = []
        for request, start, length in zip(*self._step, strict=True):
            writes.extend(self.cache.slot_numbers(request.request_id, start, start + length))
        return to_device(indices(writes), self.cache.keys[0].device)

    def place(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._write, self.cache.keys[layer], self.cache.values[layer]

    def keep(self, rows: torch.Tensor) -> None:
        """Store the runner's rows for this step's positions, ``[n, kept_width]``."""
        self.cache.kept.index_copy_(0, self._write, rows)


class AttentionBackend(ABC):
    """An implementation of attention over the paged cache."""

    name: ClassVar[str]

    static_decode: ClassVar[type[StaticAttention]]
    """Its attention for replayed decode steps."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache

    @classmethod
    @abstractmethod
    def probe(cls, device: torch.device, layout: KVLayout, block_size: int) -> str | None:
        """Return why the backend cannot work there, or ``None`` if it can. Cheap; imports its library only if it is
        installed.
        """

    @abstractmethod
    def plan(self, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> StepAttention:
        """Return the attention of a step that computes ``lengths[i]`` positions from ``starts[i]`` of each request."""


class PageTables:
    """The batch in the int32 layout of paged-attention kernels: offsets into the packed queries, and each request's
    pages.

    Attributes:
        query_offsets: ``[requests + 1]``, the first row of each request.
        page_offsets: ``[requests + 1]`` into ``pages``.
        last_page: ``[requests]``, the used positions of the last page.
    """

    def __init__(self, cache: KVCache, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> None:
        seen = [start + length for start, length in zip(starts, lengths, strict=True)]
        tables = [
            cache.blocks(request.request_id)[: cache.blocks_for(count)]
            for request, count in zip(requests, seen, strict=True)
        ]
        device = cache.keys[0].device

        def tensor(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        self.query_offsets = tensor(_offsets(lengths))
        self.page_offsets = tensor(_offsets([len(table) for table in tables]))
        self.pages = tensor([page for table in tables for page in table])
        self.last_page = tensor([(count - 1) % cache.block_size + 1 for count in seen])


def _offsets(counts: list[int]) -> list[int]:
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count)
    return offsets
