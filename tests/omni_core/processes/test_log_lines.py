"""Cutting the output of a process into lines: bounded, and linear in its size."""

from __future__ import annotations

import time

from omni_core.processes.log_lines import LONGEST_LINE, MOST_LINES, LogLines


def test_lines_may_come_in_any_pieces() -> None:
    text = b"one\ntwo\r\n\nthree\rfour"
    for size in range(1, len(text) + 1):
        lines = LogLines()
        seen = [line for start in range(0, len(text), size) for line in lines.feed(text[start : start + size])]
        assert [*seen, *lines.finish()] == ["one", "two", "three", "four"]
        assert lines.finish() == []


def test_a_line_without_an_end_is_bounded_and_linear() -> None:
    lines = LogLines()
    begin = time.process_time()
    for _ in range(1600):
        assert lines.feed(b"x" * 65536) == []
    assert time.process_time() - begin < 2.0
    (line,) = lines.feed(b"\n")
    assert line == "x" * LONGEST_LINE + f" [{1600 * 65536 - LONGEST_LINE} bytes cut]"
    assert lines.feed(b"next\n") == ["next"]


def test_of_many_lines_the_last_are_kept() -> None:
    lines = LogLines().feed(b"".join(b"%d\n" % n for n in range(1000)))
    assert lines[0] == "0"
    assert lines[1] == f"[{999 - MOST_LINES} lines dropped]"
    assert lines[2:] == [str(n) for n in range(1000 - MOST_LINES, 1000)]


def test_long_lines_inside_a_piece_are_cut() -> None:
    assert LogLines().feed(b"a\n" + b"y" * (LONGEST_LINE + 5) + b"\n") == ["a", "y" * LONGEST_LINE + " [5 bytes cut]"]
