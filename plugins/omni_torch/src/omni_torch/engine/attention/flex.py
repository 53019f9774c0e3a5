"""Attention by PyTorch's FlexAttention: one call over the whole cache, in which each block of queries reads its own
pages only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from omni_core.api import ARRequest, KVLayout
from omni_torch.engine.attention.base import AttentionBackend, PageTables, StepAttention
from omni_torch.engine.kv_cache import KVCache

QUERY_BLOCK = 128
"""The number of query rows that share a list of pages."""


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


class FlexBackend(AttentionBackend):
    """Compiled at first use; ``compiled=False`` computes the same without compiling, slowly, on any device."""

    name = "flex"

    def __init__(self, cache: KVCache, *, compiled: bool = True) -> None:
        super().__init__(cache)
        self.attend: Any = _compiled() if compiled else flex_attention

    @classmethod
    def probe(cls, device: torch.device, layout: KVLayout, block_size: int) -> str | None:
        if device.type != "cuda":
            return "it needs a GPU: on a CPU it reads the whole cache"
        if block_size < 16 or block_size & (block_size - 1):
            return f"block_size must be a power of two from 16 for it, is {block_size}"
        return None

    def plan(self, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> StepAttention:
        return _Step(self, requests, starts, lengths)


class _Step(StepAttention):
    def __init__(self, backend: FlexBackend, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> None:
        super().__init__(backend.cache, requests, starts, lengths)
        self._attend = backend.attend
        self._mask = block_mask(backend.cache, requests, starts, lengths)

    def attend(self, layer: int, query: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        keys, values = (
            each.transpose(0, 1).unsqueeze(0) for each in (self.cache.keys[layer], self.cache.values[layer])
        )
        options: dict[str, Any] = {"BLOCK_N": min(self.cache.block_size, 64)}
        mixed = self._attend(
            query.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            block_mask=self._mask,
            scale=scale,
            enable_gqa=query.shape[1] != keys.shape[1],
            kernel_options=options if query.is_cuda else None,
        )
        output: torch.Tensor = mixed[0].transpose(0, 1)
        return output


def block_mask(cache: KVCache, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> BlockMask:
    """Return the mask of the slots that each packed query row attends to. Requests that share a page have it at the
    same index.
    """
    tables = PageTables(cache, requests, starts, lengths)
    device, size = tables.pages.device, cache.block_size
    rows = sum(lengths)
    owner = torch.repeat_interleave(torch.arange(len(requests)), torch.tensor(lengths))
    position = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    place = torch.full((len(requests), cache.pool.total), -1, dtype=torch.int64)
    for index, table in enumerate(tables.tables):
        place[index, table] = torch.arange(len(table))
    # Rows that pad the last query block belong to the last request and attend to its first position only.
    padded = -rows % QUERY_BLOCK
    owner = torch.cat([owner, owner[-1:].expand(padded)]).to(device)
    position = torch.cat([position, position.new_zeros(padded)]).to(device)
    place = place.to(device)

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        page = place[owner[query], slot // size]
        return (page >= 0) & (page * size + slot % size <= position[query])

    pages = [sorted({page for request in set(block.tolist()) for page in tables.tables[request]})
             for block in owner.cpu().split(QUERY_BLOCK)]  # fmt: skip
    counts = torch.tensor([len(each) for each in pages], dtype=torch.int32, device=device)
    indices = torch.zeros(len(pages), cache.pool.total, dtype=torch.int32)
    for index, each in enumerate(pages):
        indices[index, : len(each)] = torch.tensor(each, dtype=torch.int32)
    return BlockMask.from_kv_blocks(
        counts[None, None],
        indices.to(device)[None, None],
        BLOCK_SIZE=(QUERY_BLOCK, size),
        mask_mod=sees,
        seq_lengths=(rows, cache.capacity),
    )
