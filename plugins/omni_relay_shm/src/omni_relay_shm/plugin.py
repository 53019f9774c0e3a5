"""Registers the ``shm`` relay."""

from __future__ import annotations

import os
import sys

from omni_core.api import Component, RelayComponent, hookimpl


def probe() -> str | None:
    """Return why anonymous shared memory cannot be created here or opened by sibling processes, or ``None``."""
    if sys.platform != "linux":
        return f"it needs Linux (memfd and /proc), this is {sys.platform}"
    if not os.path.isdir("/proc/self/fd"):
        return "/proc is not mounted"
    try:
        os.close(os.memfd_create("omni-probe"))
    except OSError as error:
        return f"memfd_create failed: {error}"
    return None


@hookimpl
def omni_relays() -> list[Component]:
    summary = "pooled host shared memory, for one machine"
    return [RelayComponent("shm", "omni_relay_shm.relay:ShmRelay", summary, probe=probe, host_memory=True)]
