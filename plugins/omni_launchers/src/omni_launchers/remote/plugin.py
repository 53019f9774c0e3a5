"""The entry point of omni-launchers."""

from __future__ import annotations

import shutil

from omni_core.hookspecs import Component, hookimpl


@hookimpl
def omni_launchers() -> list[Component]:
    """Return the launchers."""
    return [
        Component(
            "ssh",
            "omni_launchers.remote.ssh:SshLauncher",
            "hosts whose servers are started by ssh",
            probe=lambda: _missing("ssh"),
            conformance="omni_launchers.remote.conformance:SshConformance",
        ),
        Component(
            "slurm",
            "omni_launchers.remote.slurm:SlurmLauncher",
            "nodes of a Slurm cluster, a step on each (srun)",
            probe=lambda: _missing("srun"),
            conformance="omni_launchers.remote.conformance:SlurmConformance",
        ),
    ]


def _missing(program: str) -> str | None:
    return None if shutil.which(program) else f"{program} is not on the PATH"
