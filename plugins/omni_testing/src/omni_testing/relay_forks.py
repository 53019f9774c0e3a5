"""A process that has imported torch and forks the other processes of relay tests, so that each starts in milliseconds and not seconds."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

CHANGES_WITH_EVERY_TEST = "PYTEST_CURRENT_TEST"

_server: _Server | None = None


def can_fork() -> bool:
    """Return whether forks save anything: this process has imported torch, so that the others will, too."""
    return "torch" in sys.modules and hasattr(os, "pidfd_open")


class ForkedProcess:
    """A forked process as ``asyncio.subprocess.Process`` shows one: its standard input and output are two ends of one socket."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter) -> None:
        self.pid, self.stdout, self.stdin = pid, stdout, stdin
        self._descriptor = os.pidfd_open(pid)

    @classmethod
    async def start(cls, *arguments: str, limit: int) -> ForkedProcess:
        """Fork a process that calls the function of :func:`serve` with these arguments."""
        here, there = socket.socketpair()
        with there:
            pid = await asyncio.to_thread(_running_server().fork, arguments, there)
        return cls(pid, *await asyncio.open_connection(sock=here, limit=limit))

    def kill(self) -> None:
        """End it.

        Raises:
            ProcessLookupError: it has been waited for.
        """
        if self._descriptor < 0:
            raise ProcessLookupError(f"process {self.pid} has ended")
        signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def wait(self) -> None:
        """Wait until it has ended. Idempotent."""
        if self._descriptor < 0:
            return
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self.stdin.close()
        with suppress(OSError):
            await self.stdin.wait_closed()


class _Server:
    """The process that forks, as this one sees it."""

    def __init__(self) -> None:
        self.place = _place()
        self._connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "omni_testing.relay_peer"]
            self._process = subprocess.Popen(command, stdin=theirs.fileno())

    def fork(self, arguments: tuple[str, ...], there: socket.socket) -> int:
        socket.send_fds(self._connection, [json.dumps(arguments).encode()], [there.fileno()])
        answer = self._connection.recv(64)
        if not answer:
            raise RuntimeError(f"the process that forks has ended with {self._process.wait()}")
        return int(answer)

    def works(self) -> bool:
        return self._process.poll() is None and self.place == _place()

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def _place() -> tuple[dict[str, str], str]:
    """Return what a process inherits."""
    return {name: value for name, value in os.environ.items() if name != CHANGES_WITH_EVERY_TEST}, os.getcwd()


def _running_server() -> _Server:
    global _server
    if _server is not None and not _server.works():
        _server.close()
        _server = None
    if _server is None:
        _server = _Server()
    return _server


@atexit.register
def _close() -> None:
    if _server is not None:
        _server.close()


def serve(run: Callable[..., None]) -> None:
    """Fork until the other end of the standard input is closed; each process calls ``run`` with the arguments that come with it."""
    import torch  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for them
    connection = socket.socket(fileno=os.dup(0))
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 2**20, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            break
        os.close(descriptors[0])
        connection.send(str(pid).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.close()
    for standard in (0, 1):
        os.dup2(descriptors[0], standard)
    os.close(descriptors[0])
    run(*json.loads(data))
