"""Fixtures of the tests of hosts that are started by a command."""

from over_hosts import folder

__all__ = ["folder"]
