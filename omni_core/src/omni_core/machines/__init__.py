"""The machines of a run: where its processes may be started, and how they are reached.

A run has one machine, or several by name (``hosts`` of the config), where ``omni hosts serve`` starts processes for it.
:class:`~omni_core.machines.hosts.Hosts` is the runner's side, :class:`~omni_core.machines.server.HostServer` the other;
:mod:`omni_core.machines.addresses` says at which address each process is reached from each machine.
"""

from omni_core.machines.addresses import MachineAddress, MachineAddresses
from omni_core.machines.hosts import Hosts

__all__ = ["Hosts", "MachineAddress", "MachineAddresses"]
