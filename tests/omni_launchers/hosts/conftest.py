"""Fixtures of the tests over two hosts."""

from over_hosts import folder, key_file

__all__ = ["folder", "key_file"]
