"""Registers the ``nixl`` relay."""

from __future__ import annotations

from importlib.util import find_spec

from omni_core.hookspecs import Component, hookimpl

supports = (1, 1)

BUILDS = ("nixl_cu12", "nixl_cu13")


def probe() -> str | None:
    """Whether a build of NIXL is installed."""
    if not any(find_spec(name) for name in BUILDS):
        return "NIXL is not installed; pip install omni-relay-nixl[cu12] (it needs no GPU)"
    return None


@hookimpl
def omni_relays() -> list[Component]:
    return [
        Component("nixl", "omni_relay_nixl.relay:NixlRelay", "remote reads over UCX, across hosts too", probe=probe)
    ]
