"""The paged KV cache: one tensor per layer, cut into blocks, and the pool that allocates blocks to requests.

A block with a content key (:class:`omni_torch.engine.positions.BlockKeys`) can be used by several requests at once. It stays cached
after its last user has released it, until its memory is needed or it has not been used for a given time; the least recently used
blocks are evicted first.
"""

from __future__ import annotations

import heapq
import math
import mmap
import sys
from collections import OrderedDict
from contextlib import suppress

import torch
from attrs import define, field

from omni_core.api import KVLayout
from omni_torch.checkpoints.weight_files import HUGE_PAGE

EVICTED_AT_ONCE = 16
"""Cached blocks evicted together: they were adjacent in one request, so the request that takes them gets adjacent blocks."""


class BlockPool:
    """Allocates block numbers and counts their references. Low numbers first: a request's blocks are then often adjacent.

    Attributes:
        now: the time in seconds, which the owner sets.
    """

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self.evictions = 0
        self.peak = 0
        self.now = 0.0
        self._free = list(range(blocks))
        self._references: dict[int, int] = {}
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._idle: OrderedDict[int, float] = OrderedDict()
        """Cached blocks without references and since when, least recently used first."""

    @property
    def free(self) -> int:
        """Number of blocks that can be taken: empty ones, and cached ones without references."""
        return len(self._free) + len(self._idle)

    @property
    def named(self) -> int:
        """Number of blocks that can be found by a key."""
        return len(self._keys)

    def take(self, count: int) -> list[int] | None:
        """Allocate ``count`` blocks with one reference each; ``None``, and nothing taken, if fewer are free."""
        if count > self.free:
            return None
        if count > len(self._free):
            self._evict(max(count - len(self._free), min(EVICTED_AT_ONCE, len(self._idle) // 8)))
        taken = [heapq.heappop(self._free) for _ in range(count)]
        self._references.update(dict.fromkeys(taken, 1))
        self.peak = max(self.peak, len(self._references))
        return taken

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _ = self._idle.popitem(last=False)
            del self._by_key[self._keys.pop(block)]
            heapq.heappush(self._free, block)
        self.evictions += count

    def expire(self, seconds: float) -> float | None:
        """Evict the cached blocks that have had no reference for so long; return in how many seconds the next one will be due."""
        while self._idle:
            due = next(iter(self._idle.values())) + seconds - self.now
            if due > 0:
                return due
            self._evict(1)
        return None

    def name(self, block: int, key: bytes) -> None:
        """Let an allocated block be found by ``key``. A second block with the same content gets no key."""
        if key not in self._by_key and block not in self._keys:
            self._by_key[key], self._keys[block] = block, key

    def unname(self, blocks: list[int]) -> None:
        """Remove the keys of allocated blocks, so that no further request finds them."""
        for block in blocks:
            key = self._keys.pop(block, None)
            if key is not None:
                del self._by_key[key]

    def forget(self) -> None:
        """Remove all keys: no request finds a block of before. Blocks in use stay with their requests."""
        for block in self._idle:
            heapq.heappush(self._free, block)
        self._idle.clear()
        self._keys.clear()
        self._by_key.clear()

    def find(self, keys: list[bytes]) -> list[int]:
        """Return the blocks of the longest cached prefix of a chain of keys."""
        found = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: list[int]) -> None:
        """Add a reference to blocks that :meth:`find` returned."""
        for block in blocks:
            self._references[block] = self._references.get(block, 0) + 1
            self._idle.pop(block, None)

    def alone(self, blocks: list[int]) -> int:
        """Count those of the blocks that have one reference."""
        return sum(self._references[block] == 1 for block in blocks)

    def idle(self, blocks: list[int]) -> int:
        """Count those of the blocks that are cached without references."""
        return sum(block in self._idle for block in blocks)

    def give_back(self, blocks: list[int]) -> list[int]:
        """Drop one reference of each block of a chain, in order: its end is evicted before its beginning.

        Returns:
            The blocks that have no reference any more.

        Raises:
            ValueError: a block has no reference.
        """
        unused = []
        for block in reversed(blocks):
            if block not in self._references:
                raise ValueError(f"block {block} was given back twice")
            self._references[block] -= 1
            if self._references[block]:
                continue
            del self._references[block]
            unused.append(block)
            if block in self._keys:
                self._idle[block] = self.now
            else:
                heapq.heappush(self._free, block)
        return unused


@define
class _Table:
    """A request's block table.

    Attributes:
        borrowed: number of leading blocks that another request computed.
        named: number of leading blocks that were given a key.
        side_by_side: how many of the first blocks are adjacent, so that their slots are one slice.
        index: the slots of all, ``[blocks * block_size]``; ``None`` until they are asked for.
        dropped: number of blocks before these that were given back.
    """

    blocks: list[int] = field(factory=list)
    borrowed: int = 0
    named: int = 0
    side_by_side: int = 0
    index: torch.Tensor | None = None
    dropped: int = 0

    def extend(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.side_by_side == len(self.blocks) and (not self.blocks or block == self.blocks[-1] + 1):
                self.side_by_side += 1
            self.blocks.append(block)
        if blocks:
            self.index = None


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros. On a CPU they take memory as they are written to: torch would write every page first. What is beyond the first 2 MiB
    has pages of that size, which are faster; but of those a layer's first keys would take a whole one.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not nbytes:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux" and nbytes > HUGE_PAGE:
        with suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE, HUGE_PAGE, nbytes - HUGE_PAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class KVCache:
    """K and V of every layer: ``[blocks * block_size, kv_heads, head_dim]`` each, and each request's block table.

    ``kept`` (``[blocks * block_size, kept_width]``) holds what a runner stores beside them. The slots from ``scratch`` on belong
    to no block and are never read: padding rows of a recorded step write there. ``forms`` and ``memory`` are the layout's.
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
        self.keys = tuple(_zeros(shape, layout.dtype, device) for _ in range(layout.layers))
        self.values = tuple(_zeros(shape, layout.dtype, device) for _ in range(layout.layers))
        self.kept = torch.empty(self.scratch, kept_width, dtype=layout.dtype, device=device)
        self.block_size, self.forms, self.memory = block_size, layout.forms, layout.memory
        self.pool = BlockPool(blocks)
        self._tables: dict[str, _Table] = {}
        self._pending_clear: set[int] = set()
        """Blocks of failed requests that others still read; cleared when the last of them has released them."""

    @staticmethod
    def block_bytes(layout: KVLayout, block_size: int, kept_width: int = 0) -> int:
        """Return the bytes of one block: K and V of all layers, and what a runner stores beside them."""
        values = 2 * layout.layers * layout.kv_heads * layout.head_dim + kept_width
        return values * block_size * layout.dtype.itemsize

    @property
    def capacity(self) -> int:
        """Number of positions that fit."""
        return self.pool.total * self.block_size

    def blocks_for(self, positions: int) -> int:
        """Return the number of blocks that hold this many positions."""
        return -(-positions // self.block_size)

    def reserve(self, request_id: str, positions: int, first: int = 0) -> bool:
        """Allocate what a request's first ``positions`` positions need; ``False``, and nothing changed, if that is not free.

        Args:
            first: the first position that is kept, of a request without blocks: what :meth:`drop` returned.
        """
        table = self._tables.get(request_id)
        if table is None:
            table = self._tables[request_id] = _Table(dropped=first // self.block_size)
        elif positions <= (table.dropped + len(table.blocks)) * self.block_size:
            return True  # nearly always: a block holds several steps
        taken = self.pool.take(max(0, self.blocks_for(positions) - table.dropped - len(table.blocks)))
        if taken is None:
            return False
        table.extend(taken)
        return True

    def drop(self, request_id: str, positions: int) -> int:
        """Give back the blocks of a request's first ``positions`` positions, which no layer reads again; return the first position that is
        kept. For a request whose blocks have no keys.
        """
        table = self._tables[request_id]
        count = max(0, positions // self.block_size - table.dropped)
        if count:
            self.pool.give_back(table.blocks[:count])
            del table.blocks[:count]
            table.dropped, table.index = table.dropped + count, None
            table.side_by_side = max(min(1, len(table.blocks)), table.side_by_side - count)
        return table.dropped * self.block_size

    def open(self, request_id: str, shared: list[int], positions: int) -> bool:
        """:meth:`reserve` for a request without blocks, with ``shared`` (from ``pool.find``) as its first blocks."""
        self.pool.share(shared)
        taken = self.pool.take(self.blocks_for(positions) - len(shared))
        if taken is None:
            self.pool.give_back(shared)
            return False
        table = self._tables[request_id] = _Table(borrowed=len(shared), named=len(shared))
        table.extend(shared + taken)
        return True

    def name(self, request_id: str, keys: list[bytes]) -> None:
        """Let a request's first blocks, which must have been computed, be found by these keys."""
        table = self._tables[request_id]
        for block, key in zip(table.blocks[table.named : len(keys)], keys[table.named :], strict=True):
            self.pool.name(block, key)
        table.named = max(table.named, len(keys))

    def named(self, request_id: str) -> int:
        """Return how many of a request's blocks have been given a key."""
        return self._tables[request_id].named

    def release(self, request_id: str, *, invalidate: bool = False) -> None:
        """Drop a request's references to its blocks. Idempotent.

        Args:
            invalidate: the request failed. Blocks that it computed lose their keys, so that no further request finds them, and
                are cleared when their last reader releases them. A request that shares them keeps them unchanged: a block is named after
                the step that computed it has succeeded, and its K and V are a function of its key alone, so a request that
                had computed them itself would hold the same values (and would meet the same NaN).
        """
        table = self._tables.pop(request_id, None)
        if table is None:
            return
        if invalidate:
            own = table.blocks[table.borrowed :]
            self.pool.unname(own)
            self._pending_clear.update(own)
        unused = self._pending_clear.intersection(self.pool.give_back(table.blocks))
        if unused:
            self._pending_clear -= unused
            self._clear(sorted(unused))

    def _clear(self, blocks: list[int]) -> None:
        """Fill blocks with zeros: a kernel may read the unused end of a block with weight zero, and zero times NaN is
        NaN.
        """
        slots = (
            torch.tensor(blocks, dtype=torch.int64).unsqueeze(1) * self.block_size + torch.arange(self.block_size)
        ).reshape(-1)
        for each in (*self.keys, *self.values):
            each.index_fill_(0, slots.to(each.device), 0.0)

    def freed_by(self, request_ids: list[str]) -> int:
        """Return a lower bound of the blocks that become free when these requests are released."""
        return sum(self.pool.alone(self._tables[each].blocks) for each in request_ids if each in self._tables)

    def holds(self, request_id: str) -> bool:
        """Return whether a request has blocks."""
        return request_id in self._tables

    def blocks(self, request_id: str) -> list[int]:
        """Return a request's block table. It must not be changed."""
        return self._tables[request_id].blocks

    def slot_numbers(self, request_id: str, start: int, end: int) -> list[int]:
        """Return the slots of positions ``start`` to ``end`` (exclusive) of a request."""
        table, size = self._tables[request_id], self.block_size
        blocks, dropped = table.blocks, table.dropped
        return [blocks[position // size - dropped] * size + position % size for position in range(start, end)]

    def slots(self, request_id: str, start: int, end: int) -> torch.Tensor | slice:
        """Return the slots of positions ``start`` to ``end`` (exclusive): a slice if the blocks are adjacent, else an index."""
        table, size = self._tables[request_id], self.block_size
        start, end = start - table.dropped * size, end - table.dropped * size
        if end <= table.side_by_side * size:
            base = table.blocks[0] * size
            return slice(base + start, base + end)
        if table.index is None:
            table.index = (torch.tensor(table.blocks).unsqueeze(1) * size + torch.arange(size)).reshape(-1)
        return table.index[start:end]
