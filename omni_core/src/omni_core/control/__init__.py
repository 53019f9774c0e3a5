"""The transport of small messages: from any process of a run to any other, in order, bounded, without a broker.

:class:`ControlPlane` is one process's end; :class:`Peer` decides, without IO, what is written to another process and what has reached
it. Connections are Unix-domain sockets within a machine, and links of a run's :class:`Network` between machines.
"""

from omni_core.control.network import Link, Network
from omni_core.control.plane import ControlPlane

__all__ = ["ControlPlane", "Link", "Network"]
