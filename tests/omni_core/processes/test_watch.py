"""A process's view of itself: the lack of memory."""

from __future__ import annotations

from omni_core.processes.watch import MemoryWatch


def test_memory_errors_in_a_row_end_the_process_if_there_is_no_memory() -> None:
    watch = MemoryWatch(lambda: True)
    assert [watch.must_end("MemoryError", lambda: 5) for _ in range(3)] == [False, False, True]


def test_memory_errors_between_successes_do_not() -> None:
    watch = MemoryWatch(lambda: True)
    assert not any(watch.must_end("MemoryError", lambda n=n: n) for n in range(9))  # type: ignore[misc]


def test_memory_errors_do_not_while_there_is_memory() -> None:
    watch = MemoryWatch(lambda: False)
    assert not any(watch.must_end("MemoryError", lambda: 0) for _ in range(9))


def test_other_errors_do_not_count() -> None:
    watch = MemoryWatch(lambda: True)
    assert not any(watch.must_end("ValueError", lambda: 0) for _ in range(9))
