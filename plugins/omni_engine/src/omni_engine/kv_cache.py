"""The paged KV cache: one tensor per layer, cut into blocks, and the pool that lends blocks to requests."""

from __future__ import annotations

import heapq

import torch

from omni_core.model_runner.types import KVLayout


class BlockPool:
    """Lends block numbers. The lowest free ones go first, so that a request's blocks often lie side by side."""

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self._free = list(range(blocks))
        self._lent: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """``count`` blocks, or ``None`` (and nothing taken) if there are not that many."""
        if count > len(self._free):
            return None
        taken = [heapq.heappop(self._free) for _ in range(count)]
        self._lent.update(taken)
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks. Raises ValueError for one that is not lent."""
        for block in blocks:
            if block not in self._lent:
                raise ValueError(f"block {block} was given back twice")
            self._lent.discard(block)
            heapq.heappush(self._free, block)


class KVCache:
    """K and V of every layer: ``[blocks * block_size, kv_heads, head_dim]`` each, and each request's block table."""

    def __init__(self, layout: KVLayout, blocks: int, block_size: int, device: torch.device) -> None:
        shape = (blocks * block_size, layout.kv_heads, layout.head_dim)
        self.keys = [torch.empty(shape, dtype=layout.dtype, device=device) for _ in range(layout.layers)]
        self.values = [torch.empty(shape, dtype=layout.dtype, device=device) for _ in range(layout.layers)]
        self.block_size = block_size
        self.pool = BlockPool(blocks)
        self._tables: dict[str, list[int]] = {}

    @staticmethod
    def block_bytes(layout: KVLayout, block_size: int) -> int:
        """Bytes of one block over all layers, K and V."""
        return 2 * layout.layers * layout.kv_heads * layout.head_dim * block_size * layout.dtype.itemsize

    def blocks_for(self, positions: int) -> int:
        return -(-positions // self.block_size)

    def reserve(self, request_id: str, positions: int) -> bool:
        """Make room for a request's first ``positions`` positions; ``False`` (and nothing changed) if there is none."""
        table = self._tables.setdefault(request_id, [])
        taken = self.pool.take(max(0, self.blocks_for(positions) - len(table)))
        if taken is None:
            return False
        table.extend(taken)
        return True

    def release(self, request_id: str) -> None:
        """Give a request's blocks back. Idempotent."""
        self.pool.give_back(self._tables.pop(request_id, []))

    def slots(self, request_id: str, start: int, end: int) -> torch.Tensor | slice:
        """Where positions ``start..end`` of a request lie: a slice when its blocks are side by side, else an index."""
        table, size = self._tables[request_id], self.block_size
        first, last = start // size, -(-end // size)
        blocks = table[first:last]
        if blocks[-1] - blocks[0] == len(blocks) - 1 and blocks == list(range(blocks[0], blocks[-1] + 1)):
            base = blocks[0] * size - first * size
            return slice(base + start, base + end)
        index = torch.tensor(blocks).unsqueeze(1) * size + torch.arange(size)
        return index.reshape(-1)[start - first * size : end - first * size]
