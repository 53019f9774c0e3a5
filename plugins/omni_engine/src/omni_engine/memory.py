"""Reads the free memory of a device, for caches that are sized as a share of it."""

from __future__ import annotations

from pathlib import Path

import torch


def available_bytes(device: torch.device) -> int:
    """Return the bytes that this process can still allocate: free GPU memory, or the least that the system and the
    control group leave.

    Raises:
        OSError: the device is the CPU and the system has no ``/proc/meminfo``.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(device))
        return min(free, allowed - torch.cuda.memory_reserved(device))
    (line,) = [each for each in Path("/proc/meminfo").read_text().splitlines() if each.startswith("MemAvailable:")]
    return min(int(line.split()[1]) * 1024, _control_group_bytes())


def _control_group_bytes() -> int:
    """Return the bytes that this process's control group (version 2) still allows; a huge number if it sets no limit."""
    least = 2**63
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        folder = Path("/sys/fs/cgroup") / own.lstrip("/")
        for each in (folder, *folder.parents):
            limit = each / "memory.max"
            if limit.is_file() and (text := limit.read_text().strip()) != "max":
                least = min(least, int(text) - int((each / "memory.current").read_text()))
    except (OSError, ValueError):
        return least
    return max(0, least)
