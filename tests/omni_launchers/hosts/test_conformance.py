"""The launcher of hosts passes the suite of launchers."""

from __future__ import annotations

from omni_testing.ours.hosts import HostsConformance


class TestHosts(HostsConformance):
    pass
