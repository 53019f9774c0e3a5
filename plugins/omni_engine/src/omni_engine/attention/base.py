"""What an attention backend is: it plans a step once, and the step's layers call the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from omni_core.model_runner import ARRequest, CacheAttention, KVLayout
from omni_engine.kv_cache import KVCache

if TYPE_CHECKING:
    from omni_engine.attention.static import StaticAttention


class StepAttention(CacheAttention):
    """The attention of one step's batch."""

    def __init__(self, cache: KVCache, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> None:
        self.cache, self._step = cache, (requests, starts, lengths)

    @cached_property
    def _write(self) -> torch.Tensor:
        """Where the step's positions belong, ``[n]``. Made when it is needed: a step that is replayed may not."""
        writes: list[int] = []
        for request, start, length in zip(*self._step, strict=True):
            writes.extend(self.cache.slot_numbers(request.request_id, start, start + length))
        return torch.tensor(writes, device=self.cache.keys[0].device)

    def place(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._write, self.cache.keys[layer], self.cache.values[layer]

    def keep(self, rows: torch.Tensor) -> None:
        """Store what the runner keeps of this step's positions, ``[n, kept_width]``."""
        self.cache.kept.index_copy_(0, self._write, rows)


class AttentionBackend(ABC):
    """One way to compute attention over the paged cache."""

    name: ClassVar[str]

    static_decode: ClassVar[type[StaticAttention] | None] = None
    """Its attention of decodes that are replayed; ``None``: it has none, and no step is."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache

    @classmethod
    @abstractmethod
    def probe(cls, device: torch.device, layout: KVLayout, block_size: int) -> str | None:
        """Whether it can work there: ``None``, or the reason why not. Cheap; imports its library only if it is installed."""

    @abstractmethod
    def plan(self, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> StepAttention:
        """The attention of a step that computes ``lengths[i]`` positions from ``starts[i]`` of each request."""


class PageTables:
    """The batch as kernels for paged caches want it, int32: offsets into the packed queries, and each request's pages.

    Attributes:
        query_offsets: ``[requests + 1]``, where each request's rows begin. lengths: ``[requests]`` keys that each sees.
        page_offsets: ``[requests + 1]`` into ``pages``. last_page: ``[requests]`` how much of the last page is filled.
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
        self.lengths = tensor(seen)
        self.page_offsets = tensor(_offsets([len(table) for table in tables]))
        self.pages = tensor([page for table in tables for page in table])
        self.last_page = tensor([(count - 1) % cache.block_size + 1 for count in seen])
        self.longest_query, self.longest = max(lengths), max(seen)
        self.tables = tables

    def padded(self) -> torch.Tensor:
        """``[requests, most pages]``; rows of fewer pages end in page 0, which their lengths hide."""
        most = max(len(table) for table in self.tables)
        rows = [table + [0] * (most - len(table)) for table in self.tables]
        return torch.tensor(rows, dtype=torch.int32, device=self.pages.device)


def _offsets(counts: list[int]) -> list[int]:
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count)
    return offsets
