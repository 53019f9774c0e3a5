"""The launcher of hosts passes the suite of launchers."""

from __future__ import annotations

from omni_launchers.hosts.conformance import HostsConformance


class TestHosts(HostsConformance):
    pass
