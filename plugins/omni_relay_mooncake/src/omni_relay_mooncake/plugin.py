"""Registers the ``mooncake`` relay."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from omni_core.api import Component, RelayComponent, hookimpl

NOT_INSTALLED = "Mooncake is not installed; pip install omni-relay-mooncake[cpu], or [cuda] where there are GPUs"

_LIBRARIES = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}
"""Libraries that the engine is linked with but does not ship, with their Debian packages."""


def missing_libraries() -> str | None:
    """Return the missing system libraries of the engine, and how to install them; ``None`` if none."""
    import ctypes

    missing = []
    for name, package in _LIBRARIES.items():
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append((name, package))
    if not missing:
        return None
    names, packages = (" ".join(each) for each in zip(*missing, strict=True))
    return f"system libraries are missing ({names}); apt-get install {packages}"


def probe() -> str | None:
    """Return why the Transfer Engine cannot be used here, or ``None``: it and the libraries that it is linked with must be installed."""
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    if find_spec("mooncake") is None:
        return NOT_INSTALLED
    return missing_libraries()


@hookimpl
def omni_relays() -> list[Component]:
    return [
        RelayComponent(
            "mooncake",
            "omni_relay_mooncake.relay:MooncakeRelay",
            "remote reads by the Mooncake Transfer Engine, across hosts too; unauthenticated",
            probe=probe,
            across_hosts=True,
            preference=1,
        )
    ]
