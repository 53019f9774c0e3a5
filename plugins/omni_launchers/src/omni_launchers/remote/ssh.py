"""The launcher ``ssh``: hosts that the system's ``ssh`` reaches."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import ceil

from attrs import field, frozen, validators

from omni_core.api import LauncherOptions
from omni_launchers.hosts.launcher import HostsSettings
from omni_launchers.remote.started import StartedHosts

_STRINGS = validators.deep_iterable(validators.instance_of(str), validators.instance_of(list))
_STRING_BY_NAME = validators.deep_mapping(
    validators.instance_of(str), validators.instance_of(str), validators.instance_of(dict)
)

OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=1")
"""Options of every call: no terminal, no questions, and signs of life, of which a number may be missing."""

_MISSING = 2
"""Seconds by which ``ssh`` bears a longer silence than the connections of the run."""


@frozen(kw_only=True)
class Settings(HostsSettings):
    """``launcher.settings`` of the launcher ``ssh``, beside the ``silence`` of hosts.

    Attributes:
        ssh: the client and its options, such as ``[ssh, -F, cluster.conf]``.
        destinations: by host of the config, what ``ssh`` gets: ``user@host`` or a name of its config file. By default the host's name.
        omni: the shell's words for ``omni`` there, such as ``/opt/omni/bin/omni`` or ``HF_HOME=/models omni``.
        addresses: by host, the address on which its processes listen. By default that by which it reaches this machine.
    """

    ssh: list[str] = field(factory=lambda: ["ssh"], validator=[_STRINGS, validators.min_len(1)])
    destinations: dict[str, str] = field(factory=dict, validator=_STRING_BY_NAME)
    omni: str = field(default="omni", validator=validators.instance_of(str))
    addresses: dict[str, str] = field(factory=dict, validator=_STRING_BY_NAME)


class SshLauncher(StartedHosts):
    """Runs a host server on each ``host`` of the config, by ssh."""

    def __init__(self, options: LauncherOptions) -> None:
        self._settings = options.read_settings(Settings)
        self.check_names(options, destinations=self._settings.destinations, addresses=self._settings.addresses)
        super().__init__(options, silence=self._settings.silence)

    def command(self, host: str) -> Sequence[str]:
        settings = self._settings
        there = f"exec env {settings.omni} {shlex.join(self.join(host, settings.addresses.get(host)))}"
        silent = f"ServerAliveCountMax={ceil(settings.silence) + _MISSING}"
        # `--`: no destination can be taken for an option.
        return [*settings.ssh, *OPTIONS, "-o", silent, "--", settings.destinations.get(host, host), there]
