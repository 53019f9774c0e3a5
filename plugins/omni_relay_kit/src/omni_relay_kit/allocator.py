"""The allocator of a pool's bytes: first fit at the lowest address, neighbours merged when freed.

The lowest address first means that the same pages are used again and again: a page's first touch costs far more than
a copy into it (see ``docs/decisions/0011-relays.md``).
"""

from __future__ import annotations

from bisect import insort

GRANULE = 4096
"""Block sizes are multiples of this many bytes."""


class Allocator:
    """Free ranges of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.in_use = 0
        self._free: list[tuple[int, int]] = [(0, size)]

    @staticmethod
    def rounded(nbytes: int) -> int:
        """Return the block size that holds ``nbytes``; at least one granule."""
        return max(1, -(-nbytes // GRANULE)) * GRANULE

    def allocate(self, nbytes: int) -> int | None:
        """Return the offset of a block for ``nbytes``, or ``None`` while no range is long enough."""
        length = self.rounded(nbytes)
        for index, (offset, free) in enumerate(self._free):
            if free >= length:
                if free == length:
                    del self._free[index]
                else:
                    self._free[index] = (offset + length, free - length)
                self.in_use += length
                return offset
        return None

    def free(self, offset: int, nbytes: int) -> None:
        """Free a block. ``offset`` and ``nbytes`` are those of its allocation."""
        length = self.rounded(nbytes)
        self.in_use -= length
        insort(self._free, (offset, length))
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged
