"""The machines of a run: where its processes may be started, and how they are reached.

A run's :class:`Launcher` finds a :class:`RunMachine` for each unit: ``local`` is built in, ``hosts`` and others are plugins.
:class:`~omni_core.machines.placing.Placing` completes launch specs for the machine that a unit got.
"""

from omni_core.machines.launcher import Grant, Launcher, LauncherOptions, Need, RunMachine
from omni_core.machines.local import LocalLauncher, LocalMachine, NoSettings
from omni_core.machines.placing import Placing, endpoint_of, needs
from omni_core.machines.selection import make_launcher

__all__ = [
    "Grant",
    "Launcher",
    "LauncherOptions",
    "LocalLauncher",
    "LocalMachine",
    "RunMachine",
    "Need",
    "NoSettings",
    "Placing",
    "endpoint_of",
    "make_launcher",
    "needs",
]
