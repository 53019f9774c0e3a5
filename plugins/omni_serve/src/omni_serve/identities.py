"""Random identities of requests, answers and events, from the system's generator.

It is read in blocks: a system call for each of a request's three identities took 7 % of the server's time.
"""

from __future__ import annotations

import os
import threading

_BLOCK = 4096


class _Source:
    """Gives out random bytes, each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Drop what was read: a fork must not give out the same."""
        self._block, self._at = b"", 0

    def take(self, count: int) -> bytes:
        """Return so many bytes, at most the size of a block."""
        with self._lock:
            if self._at + count > len(self._block):
                self._block, self._at = os.urandom(_BLOCK), 0
            self._at += count
            return self._block[self._at - count : self._at]


_source = _Source()
os.register_at_fork(after_in_child=_source.forget)


def random_hex(count: int) -> str:
    """Return ``count`` random bytes as hexadecimal text: for names that nobody may guess, not for keys, which are drawn alone."""
    return _source.take(count).hex()
