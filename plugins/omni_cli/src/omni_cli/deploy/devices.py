"""The GPUs of this host, asked of the CUDA driver itself: no torch, no context on any device."""

from __future__ import annotations

import ctypes
from pathlib import Path


def detect() -> list[int] | None:
    """Return the memory in bytes of each visible CUDA device, in the order of device numbers; ``None`` if it is not known.

    Honours ``CUDA_VISIBLE_DEVICES``. It is not known where torch may use devices of another vendor.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None if Path("/dev/kfd").exists() else []
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    sizes = []
    for number in range(count.value):
        device, nbytes = ctypes.c_int(), ctypes.c_size_t()
        if driver.cuDeviceGet(ctypes.byref(device), number) != 0:
            return None
        if driver.cuDeviceTotalMem_v2(ctypes.byref(nbytes), device) != 0:
            return None
        sizes.append(nbytes.value)
    return sizes
