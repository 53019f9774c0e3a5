"""The launcher ``slurm``: nodes of a Slurm cluster, each with one job step."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

from attrs import field, frozen, validators

from omni_core.api import LauncherOptions
from omni_launchers.hosts.launcher import HostsSettings
from omni_launchers.remote.ssh import _STRING_BY_NAME, _STRINGS
from omni_launchers.remote.started import StartedHosts

NODE_NAME = "SLURMD_NODENAME"
"""The variable by which Slurm tells a process the name of its node."""

OPTIONS = ("--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--kill-on-bad-exit=1", "--unbuffered")
"""Options of every step: one process, beside other steps, on all processors that the job has on the node."""


def _node(instance: Any, attribute: Any, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"'nodes' must have names of nodes, or their numbers in the job, got {value!r}")


@frozen(kw_only=True)
class Settings(HostsSettings):
    """``launcher.settings`` of the launcher ``slurm``, beside the ``silence`` of hosts.

    Attributes:
        srun: the client and its options, such as ``[srun, --gpus-per-node=2]``.
        nodes: by host of the config, the name of a node, or its number in the job's allocation. By default the host's name.
        omni: the words of the command ``omni`` there. No shell reads them.
        addresses: by host, the address on which its processes listen. By default that by which it reaches this machine.
    """

    srun: list[str] = field(factory=lambda: ["srun"], validator=[_STRINGS, validators.min_len(1)])
    nodes: dict[str, str | int] = field(
        factory=dict,
        validator=validators.deep_mapping(validators.instance_of(str), _node, validators.instance_of(dict)),
    )
    omni: str = field(default="omni", validator=validators.instance_of(str))
    addresses: dict[str, str] = field(factory=dict, validator=_STRING_BY_NAME)


class SlurmLauncher(StartedHosts):
    """Runs a host server for each ``host`` of the config as a step on a node, by ``srun``."""

    def __init__(self, options: LauncherOptions) -> None:
        self._settings = options.read_settings(Settings)
        self.check_names(options, nodes=self._settings.nodes, addresses=self._settings.addresses)
        super().__init__(options, os.environ.get(NODE_NAME), self._settings.silence)

    def command(self, host: str) -> Sequence[str]:
        settings = self._settings
        node = settings.nodes.get(host, host)
        where = f"--relative={node}" if isinstance(node, int) else f"--nodelist={node}"
        arguments = self.join(host, settings.addresses.get(host))
        return [*settings.srun, *OPTIONS, where, *shlex.split(settings.omni), *arguments]
