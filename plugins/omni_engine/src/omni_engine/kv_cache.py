"""The paged KV cache: one tensor per layer, cut into blocks, and the pool that lends blocks to requests.

A block whose content has a name (:class:`omni_engine.positions.BlockKeys`) can be lent to several requests at once, and is found
again after its last borrower has gone, until its room is needed: the least recently used go first.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

import torch
from attrs import define, field

from omni_core.model_runner.types import KVLayout

EVICTED_AT_ONCE = 16
"""Named blocks that make room together. They lay side by side in an ended request, and so they do in the next one."""


class BlockPool:
    """Lends block numbers. The lowest free ones go first, so that a request's blocks often lie side by side."""

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self.evictions = 0
        self._free = list(range(blocks))
        self._borrowers: dict[int, int] = {}
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Named blocks that nobody borrows, least recently used first."""

    @property
    def free(self) -> int:
        """Blocks that can be taken: empty ones, and named ones that nobody borrows."""
        return len(self._free) + len(self._idle)

    @property
    def named(self) -> int:
        return len(self._keys)

    def take(self, count: int) -> list[int] | None:
        """``count`` blocks, or ``None`` (and nothing taken) if there are not that many."""
        if count > self.free:
            return None
        if count > len(self._free):
            self._evict(max(count - len(self._free), min(EVICTED_AT_ONCE, len(self._idle) // 8)))
        taken = [heapq.heappop(self._free) for _ in range(count)]
        self._borrowers.update(dict.fromkeys(taken, 1))
        return taken

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _ = self._idle.popitem(last=False)
            del self._by_key[self._keys.pop(block)]
            heapq.heappush(self._free, block)
        self.evictions += count

    def name(self, block: int, key: bytes) -> None:
        """Let a lent block be found by ``key``. A second block of the same content stays nameless."""
        if key not in self._by_key and block not in self._keys:
            self._by_key[key], self._keys[block] = block, key

    def unname(self, blocks: list[int]) -> None:
        """Let lent blocks be found no more."""
        for block in blocks:
            key = self._keys.pop(block, None)
            if key is not None:
                del self._by_key[key]

    def find(self, keys: list[bytes]) -> list[int]:
        """The blocks of the longest known beginning of a chain."""
        found = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: list[int]) -> None:
        """Lend blocks that :meth:`find` gave once more."""
        for block in blocks:
            self._borrowers[block] = self._borrowers.get(block, 0) + 1
            self._idle.pop(block, None)

    def alone(self, blocks: list[int]) -> int:
        """How many of these blocks have one borrower."""
        return sum(self._borrowers[block] == 1 for block in blocks)

    def idle(self, blocks: list[int]) -> int:
        """How many of these blocks have no borrower."""
        return sum(block in self._idle for block in blocks)

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks, a chain in order: its end is evicted before its beginning. Raises ValueError for one that is not lent."""
        for block in reversed(blocks):
            if block not in self._borrowers:
                raise ValueError(f"block {block} was given back twice")
            self._borrowers[block] -= 1
            if self._borrowers[block]:
                continue
            del self._borrowers[block]
            if block in self._keys:
                self._idle[block] = None
            else:
                heapq.heappush(self._free, block)


@define
class _Table:
    """A request's blocks, of which the first ``borrowed`` were another's, and the first ``named`` are named.

    ``side_by_side``: their slots are one slice; else ``index`` lists them, made again when it grew.
    """

    blocks: list[int] = field(factory=list)
    borrowed: int = 0
    named: int = 0
    side_by_side: bool = True
    index: torch.Tensor | None = None

    def extend(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.blocks and block != self.blocks[-1] + 1:
                self.side_by_side = False
            self.blocks.append(block)
        if blocks:
            self.index = None


class KVCache:
    """K and V of every layer: ``[blocks * block_size, kv_heads, head_dim]`` each, and each request's block table.

    ``kept`` (``[blocks * block_size, kept_width]``) has what a runner keeps beside them. Behind the blocks, from slot ``scratch``,
    lie as many as are asked for that nobody borrows and nobody reads: rows of padding write there.
    """

    def __init__(
        self,
        layout: KVLayout,
        blocks: int,
        block_size: int,
        device: torch.device,
        kept_width: int = 0,
        scratch: int = 0,
    ) -> None:
        self.scratch = blocks * block_size
        shape = ((blocks + -(-scratch // block_size)) * block_size, layout.kv_heads, layout.head_dim)
        self.keys = [torch.zeros(shape, dtype=layout.dtype, device=device) for _ in range(layout.layers)]
        self.values = [torch.zeros(shape, dtype=layout.dtype, device=device) for _ in range(layout.layers)]
        self.kept = torch.empty(self.scratch, kept_width, dtype=layout.dtype, device=device)
        self.block_size = block_size
        self.pool = BlockPool(blocks)
        self._tables: dict[str, _Table] = {}

    @staticmethod
    def block_bytes(layout: KVLayout, block_size: int, kept_width: int = 0) -> int:
        """Bytes of one block over all layers, K and V, and what is kept beside them."""
        values = 2 * layout.layers * layout.kv_heads * layout.head_dim + kept_width
        return values * block_size * layout.dtype.itemsize

    @property
    def capacity(self) -> int:
        """Positions that fit."""
        return self.pool.total * self.block_size

    def blocks_for(self, positions: int) -> int:
        return -(-positions // self.block_size)

    def reserve(self, request_id: str, positions: int) -> bool:
        """Make room for a request's first ``positions`` positions; ``False`` (and nothing changed) if there is none."""
        table = self._tables.setdefault(request_id, _Table())
        taken = self.pool.take(max(0, self.blocks_for(positions) - len(table.blocks)))
        if taken is None:
            return False
        table.extend(taken)
        return True

    def open(self, request_id: str, shared: list[int], positions: int) -> bool:
        """:meth:`reserve` for a request that has nothing yet, with ``shared`` (of ``pool.find``) as its first blocks."""
        self.pool.share(shared)
        taken = self.pool.take(self.blocks_for(positions) - len(shared))
        if taken is None:
            self.pool.give_back(shared)
            return False
        table = self._tables[request_id] = _Table(borrowed=len(shared), named=len(shared))
        table.extend(shared + taken)
        return True

    def name(self, request_id: str, keys: list[bytes]) -> None:
        """Let a request's first blocks, which are computed, be found by these keys."""
        table = self._tables[request_id]
        for block, key in zip(table.blocks[table.named : len(keys)], keys[table.named :], strict=True):
            self.pool.name(block, key)
        table.named = max(table.named, len(keys))

    def named(self, request_id: str) -> int:
        """How many of a request's blocks have been named."""
        return self._tables[request_id].named

    def release(self, request_id: str, *, distrust: bool = False) -> None:
        """Give a request's blocks back; with ``distrust``, what it computed is not found again. Idempotent."""
        table = self._tables.pop(request_id, None)
        if table is None:
            return
        if distrust:
            own = table.blocks[table.borrowed :]
            self.pool.unname(own)
            self._clear(own)
        self.pool.give_back(table.blocks)

    def _clear(self, blocks: list[int]) -> None:
        """A kernel may read a block's unused end and weigh it with zero, which does not make a NaN vanish."""
        slots = (
            torch.tensor(blocks, dtype=torch.int64).unsqueeze(1) * self.block_size + torch.arange(self.block_size)
        ).reshape(-1)
        for each in (*self.keys, *self.values):
            each.index_fill_(0, slots.to(each.device), 0.0)

    def freed_by(self, request_ids: list[str]) -> int:
        """At least so many blocks would become free if these requests were released."""
        return sum(self.pool.alone(self._tables[each].blocks) for each in request_ids if each in self._tables)

    def blocks(self, request_id: str) -> list[int]:
        """The block table. Not to be changed."""
        return self._tables[request_id].blocks

    def slot_numbers(self, request_id: str, start: int, end: int) -> list[int]:
        """Where positions ``start..end`` of a request lie, one by one."""
        blocks, size = self._tables[request_id].blocks, self.block_size
        return [blocks[position // size] * size + position % size for position in range(start, end)]

    def slots(self, request_id: str, start: int, end: int) -> torch.Tensor | slice:
        """Where positions ``start..end`` of a request lie: a slice when its blocks are side by side, else an index."""
        table, size = self._tables[request_id], self.block_size
        if table.side_by_side:
            base = table.blocks[0] * size
            return slice(base + start, base + end)
        if table.index is None:
            table.index = (torch.tensor(table.blocks).unsqueeze(1) * size + torch.arange(size)).reshape(-1)
        return table.index[start:end]
