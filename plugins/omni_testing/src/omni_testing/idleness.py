"""What a process does while nothing happens: nothing polls, so it neither computes nor wakes up."""

from __future__ import annotations

from pathlib import Path

WAKE_UPS_PER_SECOND = 6
"""So often may a thread wake that only waits. A poll of 100 ms is more, and what the operating system adds is less."""


def wake_ups(thread: int | str = "self") -> int:
    """How often a thread of this process (by its native id; by default the main one) has gone to sleep of its own accord so far.

    0 where the operating system does not say.
    """
    path = Path("/proc/self/status") if thread == "self" else Path(f"/proc/self/task/{thread}/status")
    if not path.is_file():
        return 0
    (line,) = [each for each in path.read_text().splitlines() if each.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])
