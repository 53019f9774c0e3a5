"""The platform of this machine, found without importing torch: which sections of ``platforms`` in a deploy file apply."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

from omni_cli.deploy.devices import detect
from omni_core.api import ConfigError, did_you_mean

PLATFORMS = ("cpu", "cuda", "rocm", "xpu", "npu", "mps")

VARIABLE = "OMNI_PLATFORM"


def platform() -> str:
    """Return the name of what this machine computes on: the first kind of accelerator that its driver shows, or ``cpu``.

    ``OMNI_PLATFORM`` replaces what is found.

    Raises:
        ConfigError: ``OMNI_PLATFORM`` is no platform.
    """
    given = os.environ.get(VARIABLE)
    if given:
        if given not in PLATFORMS:
            raise ConfigError(f"{VARIABLE}={given}: no such platform{did_you_mean(given, PLATFORMS)}")
        return given
    if detect():
        return "cuda"
    for name, device in (("rocm", "/dev/kfd"), ("npu", "/dev/davinci_manager")):
        if Path(device).exists():
            return name
    with suppress(OSError):
        ctypes.CDLL("libze_intel_gpu.so.1")
        return "xpu"
    return "mps" if sys.platform == "darwin" and os.uname().machine == "arm64" else "cpu"
