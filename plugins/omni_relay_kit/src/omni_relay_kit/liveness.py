"""Detects dead peers on this host at once, where a network library takes seconds."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from attrs import astuple, frozen

from omni_core.api import PeerDiedError


@cache
def _host() -> str:
    """Identifies this boot of this machine and this PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> int:
    """Return the start time of a process, in ticks since boot; 0 if it does not exist or is a zombie.

    Field 3 is its state, field 22 its start (proc(5)); the second, its name, may contain any characters.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # in one read: two reads could see different states
            fields = file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


@frozen
class Incarnation:
    """Identifies a process, and is never equal to a later one with the same number."""

    host: str
    pid: int
    started: int

    @classmethod
    def of_this_process(cls) -> Incarnation:
        return cls(_host(), os.getpid(), _started(os.getpid()))

    def plain(self) -> list[Any]:
        """Return it as plain data; ``Incarnation(*plain)`` is equal."""
        return list(astuple(self))

    @property
    def is_here(self) -> bool:
        """True if it is or was a process of this host and of our PID namespace."""
        return self.host == _host()

    def check(self, name: str) -> None:
        """Return if the process runs, or if it is on another host, where this cannot be checked.

        Raises:
            PeerDiedError: it has ended.
        """
        if self.host and self.is_here and _started(self.pid) != self.started:
            raise PeerDiedError(f"process {self.pid} ({name}), which held the bytes, has ended")
