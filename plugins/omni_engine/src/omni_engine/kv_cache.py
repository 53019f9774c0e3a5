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
        self._scattered: dict[str, torch.Tensor | None] = {}
        """Every slot of the requests whose blocks do not lie side by side; made again when the request got a block."""

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
        for block in taken:
            if table and block != table[-1] + 1:
                self._scattered[request_id] = None
            table.append(block)
        if taken and request_id in self._scattered:
            self._scattered[request_id] = None
        return True

    def release(self, request_id: str) -> None:
        """Give a request's blocks back. Idempotent."""
        self._scattered.pop(request_id, None)
        self.pool.give_back(self._tables.pop(request_id, []))

    def slots(self, request_id: str, start: int, end: int) -> torch.Tensor | slice:
        """Where positions ``start..end`` of a request lie: a slice when its blocks are side by side, else an index."""
        table, size = self._tables[request_id], self.block_size
        if request_id not in self._scattered:
            base = table[0] * size
            return slice(base + start, base + end)
        index = self._scattered[request_id]
        if index is None:
            index = (torch.tensor(table).unsqueeze(1) * size + torch.arange(size)).reshape(-1)
            self._scattered[request_id] = index
        return index[start:end]
