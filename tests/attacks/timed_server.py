"""Runs ``omni`` with every callback of its event loops timed: ``python timed_server.py REPORT serve demo --port 0``.

At SIGUSR1 it writes the longest callback since the last one to REPORT, as JSON: ``{"ms": ..., "callback": ...}``; ``ms`` is the CPU
time of the thread that ran it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

from omni_core.cli.main import main

_run: Any = asyncio.events.Handle._run
longest: tuple[int, str] = (0, "")


def timed(handle: Any) -> None:
    """Run a callback and keep its CPU time if it is the longest so far."""
    global longest
    begun = time.thread_time_ns()
    try:
        _run(handle)
    finally:
        took = time.thread_time_ns() - begun
        if took > longest[0]:
            longest = took, repr(handle)[:300]


def report(number: int, frame: FrameType | None) -> None:
    """Write the longest callback and begin anew."""
    global longest
    taken, longest = longest, (0, "")
    with open(REPORT + ".new", "w") as file:
        json.dump({"ms": taken[0] / 1e6, "callback": taken[1]}, file)
    os.replace(REPORT + ".new", REPORT)


if __name__ == "__main__":
    REPORT = sys.argv.pop(1)
    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, report)
    sys.exit(main())
