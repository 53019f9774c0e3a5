"""Fixtures of the tests over two addresses of this machine."""

from over_hosts import folder, key_file

__all__ = ["folder", "key_file"]
