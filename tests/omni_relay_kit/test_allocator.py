"""The allocator: blocks never overlap, and freed neighbours are merged."""

from __future__ import annotations

import random

from omni_relay_kit.allocator import GRANULE, Allocator


def test_the_allocator_never_overlaps_and_merges_what_is_freed() -> None:
    chance = random.Random(0)
    allocator, live = Allocator(64 * GRANULE), {}
    for step in range(3000):
        if live and chance.random() < 0.5:
            offset = chance.choice(list(live))
            allocator.free(offset, live.pop(offset))
        size = chance.randrange(12 * GRANULE)
        offset = allocator.allocate(size)
        if offset is not None:
            end = offset + Allocator.rounded(size)
            assert end <= allocator.size
            assert all(end <= other or other + Allocator.rounded(n) <= offset for other, n in live.items()), step
            live[offset] = size
    for offset, size in live.items():
        allocator.free(offset, size)
    assert allocator.in_use == 0
    assert allocator.allocate(allocator.size) == 0
