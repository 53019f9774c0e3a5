"""Idleness of a process: nothing polls, so a process that waits neither computes nor wakes up."""

from __future__ import annotations

from pathlib import Path

WAKE_UPS_PER_SECOND = 6
"""Wake-ups per second allowed to a waiting thread: fewer than a poll of 100 ms makes, more than the operating system adds."""


def wake_ups(thread: int | str = "self") -> int:
    """Return the voluntary context switches so far of a thread of this process (by its native id; by default the main one).

    0 where the operating system does not count them.
    """
    path = Path("/proc/self/status") if thread == "self" else Path(f"/proc/self/task/{thread}/status")
    if not path.is_file():
        return 0
    (line,) = [each for each in path.read_text().splitlines() if each.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])
