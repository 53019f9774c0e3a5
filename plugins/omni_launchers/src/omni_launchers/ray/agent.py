"""The actor on a node: it owns a host server, a process beside it, and ends with it."""

from __future__ import annotations

import subprocess
import sys


class Agent:
    """Starts the host server of one run on the node of this actor.

    The server is a process of its own: Ray's worker has threads, handlers and descriptors of which stage processes should have none, and
    kills its children when it ends. The server ends by itself when its standard input does.

    Args:
        host: the address of the node.
        public, secret: the run's keys.
    """

    def __init__(self, host: str, public: str, secret: str) -> None:
        command = [sys.executable, "-m", "omni_launchers.ray.serving", host]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{public}\n{secret}\n")
        self._process.stdin.flush()

    def address(self) -> str:
        """Return the ``tcp://`` address of the server; empty: it has ended, and its log is in Ray's."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def serve(self) -> int:
        """Wait for the end of the server, and return its exit code."""
        return self._process.wait()
