"""Reads what this machine's processor and memory can hold, without torch."""

from __future__ import annotations

from pathlib import Path

BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of ``/proc/cpuinfo`` of processors that multiply bfloat16 natively (x86 and Arm)."""


def computes_bfloat16() -> bool:
    """Return True if the processor computes bfloat16 natively; without that it is slower than float32."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = [line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features"))]
    return bool(flags) and bool(BFLOAT16_FLAGS & set(flags[0]))


def available_memory() -> int | None:
    """Return the bytes that processes of this machine can still allocate: the least that the system and the control group
    leave; ``None`` if the system does not say.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(found[0], _control_group_bytes()) if found else None


def _control_group_bytes() -> int:
    """Return the bytes that this process's control group (version 2) still allows; a huge number if it sets no limit.

    Pages of files are not counted: the kernel drops them when memory is needed.
    """
    least = 2**63
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        folder = Path("/sys/fs/cgroup") / own.lstrip("/")
        for each in (folder, *folder.parents):
            limit = each / "memory.max"
            if limit.is_file() and (text := limit.read_text().strip()) != "max":
                statistics = dict(line.split() for line in (each / "memory.stat").read_text().splitlines())
                used = int((each / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))
                least = min(least, int(text) - used)
    except (OSError, ValueError):
        return least
    return max(0, least)
