"""The words of a batch's progress."""

from __future__ import annotations

from omni_cli.batch.progress import BatchProgress


def test_rate_and_time_left() -> None:
    now = [0.0]
    progress = BatchProgress(100, 20, clock=lambda: now[0])
    assert progress.note(20, 0) == "0.0/s"
    now[0] = 10.0
    assert progress.note(40, 3) == "2.0/s, 30 s left, 3 with errors"
