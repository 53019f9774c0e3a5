"""The entry point of omni-launchers[ray]."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_launchers() -> list[Component]:
    """Return the launcher of Ray clusters."""
    return [
        Component(
            "ray",
            "omni_launchers.ray.launcher:RayLauncher",
            "nodes of a Ray cluster, by a placement group",
            requires=("ray", "zmq"),
            conformance="omni_launchers.ray.conformance:RayConformance",
        )
    ]
