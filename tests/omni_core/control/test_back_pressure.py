"""Bounds on streams, by count and bytes."""

from __future__ import annotations

from omni_core.control.back_pressure import Backlog


def test_a_stream_is_full_at_its_bound_and_has_room_at_half_of_it() -> None:
    backlog: Backlog[str] = Backlog(4, 1_000)
    assert [backlog.add("a", 1) for _ in range(6)] == [False, False, False, True, False, False]
    assert backlog.is_full("a")
    assert [backlog.take("a") for _ in range(6)] == [False, False, False, True, False, False]
    assert not backlog.is_full("a")


def test_bytes_count_as_well() -> None:
    backlog: Backlog[str] = Backlog(100, 1_000)
    assert not backlog.add("a", 600)
    assert backlog.add("a", 400)
    assert backlog.take("a"), "400 are no more than half"
    assert backlog.add("a", 600)
    assert not backlog.take("a"), "600 are"


def test_streams_are_independent_and_can_be_forgotten() -> None:
    backlog: Backlog[str] = Backlog(1, 1_000)
    assert backlog.add("a", 1)
    assert not backlog.is_full("b")
    assert backlog.end("a")
    assert not backlog.end("a")
    assert not backlog.take("a"), "what was forgotten can be taken all the same"
    assert backlog.add("a", 1)
