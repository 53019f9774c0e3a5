"""Registers the ``nixl`` relay."""

from __future__ import annotations

from importlib.util import find_spec

from omni_core.api import Component, RelayComponent, hookimpl

BUILDS = ("nixl_cu12", "nixl_cu13")

NOT_INSTALLED = "NIXL is not installed; pip install omni-relay-nixl[cu12] (it needs no GPU), or [cu13] for CUDA 13"


def probe() -> str | None:
    """Return how to install NIXL, or ``None`` if a build of it is installed."""
    if not any(find_spec(name) for name in BUILDS):
        return NOT_INSTALLED
    return None


@hookimpl
def omni_relays() -> list[Component]:
    summary = "remote reads over UCX, across hosts too"
    target = "omni_relay_nixl.relay:NixlRelay"
    return [RelayComponent("nixl", target, summary, probe=probe, across_hosts=True, preference=2)]
