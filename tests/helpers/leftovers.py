"""Checks that a test leaves nothing behind, neither processes nor names in /dev/shm. What has ended may take a moment to go."""

from __future__ import annotations

import os
import time
from pathlib import Path

SECONDS = 20.0
"""Only a failure waits that long."""


def shared_memory(before: set[str]) -> set[str]:
    """Return new names in /dev/shm that no living process uses; those of other programs and other tests are ignored."""
    import psutil  # the session without plugins has none

    new = set(os.listdir("/dev/shm")) - before
    used = set()
    for process in psutil.process_iter() if new else ():
        try:
            used |= {Path(each.path).name for each in process.memory_maps(grouped=True)}
        except (psutil.Error, OSError):
            continue
    return {name for name in new - used if os.path.exists(f"/dev/shm/{name}")}


class Before:
    """The processes and shared memory that there are before a test."""

    def __init__(self) -> None:
        self._shared = set(os.listdir("/dev/shm"))
        self._children = self._running()

    @staticmethod
    def _running() -> set[object]:
        """Return the children, theirs included."""
        import psutil

        return set(psutil.Process().children(recursive=True))

    def expect_nothing_new(self, folder: Path) -> None:
        """Assert that what the test has made is gone, ``omni-*`` in its folder included.

        A test beside this one may have made a name that it has not mapped yet.
        """
        end = time.monotonic() + SECONDS
        while (
            (children := self._running() - self._children)
            or (shared := shared_memory(self._shared))
            or (files := list(folder.glob("omni-*")))
        ):
            assert time.monotonic() < end, (
                f"the test has left {children or shared or files}"  # the first that there are
            )
            time.sleep(0.05)
