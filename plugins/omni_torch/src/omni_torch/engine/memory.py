"""Reads the free memory of a device, for caches that are sized as a share of it."""

from __future__ import annotations

import torch

from omni_core.api import ConfigError
from omni_torch.placement.processor import available_memory


def available_bytes(device: torch.device) -> int:
    """Return the bytes that this process can still allocate: free GPU memory, or the least that the system and the
    control group leave.

    Raises:
        ConfigError: the device is the CPU and the system does not say how much memory is free.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(device))
        return min(free, allowed - torch.cuda.memory_reserved(device))
    free_here = available_memory()
    if free_here is None:
        raise ConfigError("kv_fraction: this system does not say how much memory is free; give kv_cache_mb instead")
    return free_here
