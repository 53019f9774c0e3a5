"""Markers before and after a block's bytes, by which a reader of freed memory, or of another process's, notices."""

from __future__ import annotations

from omni_core.api import Buffer, copy

MARK_BYTES = 64
"""The size of a marker: its relay's token and its block's key, padded to keep the block's bytes aligned."""

TOKEN_BYTES = 16

ERASED = memoryview(bytes(MARK_BYTES))


def marker(token: bytes, key: int) -> memoryview:
    """Return the marker of a block. Raises TypeError, OverflowError, AttributeError: these are no token and no key."""
    return memoryview(token[:TOKEN_BYTES] + key.to_bytes(MARK_BYTES - TOKEN_BYTES, "little"))


def write_markers(block: Buffer, mark: memoryview) -> None:
    """Write a marker at both ends of a block, whose size includes them."""
    copy(block[:MARK_BYTES], mark)
    copy(block[block.nbytes - MARK_BYTES :], mark)


def has_markers(block: Buffer, mark: memoryview) -> bool:
    """Return True if a marker is at both ends of a block."""
    found = memoryview(bytearray(2 * MARK_BYTES))
    copy(found[:MARK_BYTES], block[:MARK_BYTES])
    copy(found[MARK_BYTES:], block[block.nbytes - MARK_BYTES :])
    return found[:MARK_BYTES] == mark == found[MARK_BYTES:]
