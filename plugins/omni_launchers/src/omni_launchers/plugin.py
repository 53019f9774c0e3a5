"""Registers the launchers and the command ``hosts``."""

from __future__ import annotations

from omni_core.api import CommandComponent, Component, hookimpl


@hookimpl
def omni_launchers() -> list[Component]:
    """Return the launchers by name."""
    return [
        CommandComponent(
            "hosts",
            "omni_launchers.hosts.launcher:HostsLauncher",
            "hosts that serve (omni hosts serve) or join (omni hosts join)",
            requires=("zmq",),
            conformance="omni_testing.ours.hosts:HostsConformance",
            section="Operate",
        ),
        Component(
            "ssh",
            "omni_launchers.remote.ssh:SshLauncher",
            "hosts whose servers are started by ssh",
            probe=lambda: _missing("ssh"),
            conformance="omni_testing.ours.remote:SshConformance",
        ),
        Component(
            "slurm",
            "omni_launchers.remote.slurm:SlurmLauncher",
            "nodes of a Slurm cluster, a step on each (srun)",
            probe=lambda: _missing("srun"),
            conformance="omni_testing.ours.remote:SlurmConformance",
        ),
        Component(
            "ray",
            "omni_launchers.ray.launcher:RayLauncher",
            "nodes of a Ray cluster, by a placement group (pip install 'omni-launchers[ray]')",
            requires=("ray", "zmq"),
            conformance="omni_testing.ours.ray:RayConformance",
        ),
    ]


@hookimpl
def omni_commands() -> list[Component]:
    """Return the command of hosts."""
    return [
        CommandComponent(
            "hosts",
            "omni_launchers.hosts.commands:hosts",
            "Let pipelines of other hosts run stages here.",
            section="Operate",
        )
    ]


def _missing(program: str) -> str | None:
    import shutil  # 3 ms, for which other commands need not wait

    return None if shutil.which(program) else f"{program} is not on the PATH"
