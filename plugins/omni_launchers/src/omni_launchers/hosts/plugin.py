"""The entry point of omni-launchers."""

from __future__ import annotations

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_launchers() -> list[Component]:
    """Return the launcher of configs with ``hosts``."""
    return [
        Component(
            "hosts",
            "omni_launchers.hosts.launcher:HostsLauncher",
            "hosts that serve (omni hosts serve) or join (omni hosts join)",
            requires=("zmq",),
            conformance="omni_launchers.hosts.conformance:HostsConformance",
        )
    ]


@hookimpl
def omni_commands() -> list[Component]:
    """Return the command of hosts."""
    return [Component("hosts", "omni_launchers.hosts.commands:hosts", "Let pipelines of other hosts run stages here.")]
