"""Registers the ``nccl`` relay."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

from omni_core.api import Component, ProbeWarning, hookimpl

_DRIVERS = ("libcuda.so.1", "libamdhip64.so")


def probe() -> str | None:
    """Return why the relay cannot be used here, a :class:`ProbeWarning` if only gloo can be used, or ``None``."""
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    from pathlib import Path

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed; pip install torch"
    version = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    if not _device_is_here():
        return ProbeWarning("gloo only, no CUDA device")
    if not re.search(r"^(cuda|hip)\b.*= '", version, re.MULTILINE):
        return ProbeWarning("gloo only, this torch is built without CUDA")
    return None


def _device_is_here() -> bool:
    """Return True if a driver is installed and has a device. Queries the driver itself: importing torch takes seconds."""
    import ctypes

    for name in _DRIVERS:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if name.startswith("libcuda"):
            answered = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        else:
            answered = driver.hipGetDeviceCount(ctypes.byref(count)) == 0
        if answered and count.value > 0:
            return True
    return False


@hookimpl
def omni_relays() -> list[Component]:
    return [
        Component(
            "nccl",
            "omni_relay_nccl.relay:NcclRelay",
            "torch.distributed point to point, for one machine: nccl between GPUs, gloo between CPUs",
            probe=probe,
        )
    ]
