"""Markers of blocks: both ends are written, and both are compared."""

from __future__ import annotations

import pytest

from omni_relay_kit.markers import ERASED, MARK_BYTES, has_markers, marker, write_markers

TOKEN, OTHER = b"t" * 16, b"o" * 16


def block() -> memoryview:
    """A marked block of eight bytes."""
    made = memoryview(bytearray(b"x" * (2 * MARK_BYTES + 8)))
    write_markers(made, marker(TOKEN, 7))
    return made


def test_the_bytes_between_the_markers_are_untouched() -> None:
    made = block()
    assert has_markers(made, marker(TOKEN, 7))
    assert bytes(made[MARK_BYTES:-MARK_BYTES]) == b"x" * 8


@pytest.mark.parametrize("mark", [marker(TOKEN, 8), marker(OTHER, 7), ERASED])
def test_a_block_of_another_key_or_relay_is_noticed(mark: memoryview) -> None:
    assert not has_markers(block(), mark)


@pytest.mark.parametrize("end", [slice(None, MARK_BYTES), slice(-MARK_BYTES, None)])
def test_one_erased_marker_is_enough(end: slice) -> None:
    made = block()
    made[end] = ERASED
    assert not has_markers(made, marker(TOKEN, 7))
