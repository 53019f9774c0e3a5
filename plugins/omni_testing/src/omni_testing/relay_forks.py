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
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache

CHANGES_WITH_EVERY_TEST = "PYTEST_CURRENT_TEST"

_server: _Server | None = None
_asking = threading.Lock()


def can_fork() -> bool:
    """Return whether forks save anything, and work: this process has imported torch, so that the others will, too."""
    return "torch" in sys.modules and _has_process_descriptors()


@cache
def _has_process_descriptors() -> bool:
    """Return whether the system has them, which some sandboxes refuse."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkedProcess:
    """A forked process as ``asyncio.subprocess.Process`` shows one: its standard input and output are two ends of one socket."""

    def __init__(self, pid: int, descriptor: int, stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter) -> None:
        self.pid, self.stdout, self.stdin = pid, stdout, stdin
        self._descriptor = descriptor

    @classmethod
    async def start(cls, *arguments: str, limit: int) -> ForkedProcess:
        """Fork a process that calls the function of :func:`serve` with these arguments."""
        here, there = socket.socketpair()
        try:
            with there:
                pid, descriptor = await asyncio.to_thread(_fork, arguments, there)
        except BaseException:
            here.close()
            raise
        return cls(pid, descriptor, *await asyncio.open_connection(sock=here, limit=limit))

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

    def fork(self, arguments: tuple[str, ...], there: socket.socket) -> tuple[int, int]:
        """Return the pid and the process descriptor of a new process."""
        socket.send_fds(self._connection, [json.dumps(arguments).encode()], [there.fileno()])
        answer, descriptors, _, _ = socket.recv_fds(self._connection, 64, 1)
        if not answer:
            code = self._process.wait()
            raise RuntimeError(
                f"the process that forks the others of relay tests has ended with {code}; see what it printed"
            )
        return int(answer), descriptors[0]

    def works(self) -> bool:
        return self._process.poll() is None and self.place == _place()

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def _place() -> tuple[dict[str, str], str]:
    """Return what a process inherits."""
    return {name: value for name, value in os.environ.items() if name != CHANGES_WITH_EVERY_TEST}, os.getcwd()


def _fork(arguments: tuple[str, ...], there: socket.socket) -> tuple[int, int]:
    with _asking:
        return _running_server().fork(arguments, there)


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

    signal.signal(signal.SIGCHLD, _reap)
    connection = socket.socket(fileno=os.dup(0))
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 2**20, 1)
        if not data:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # its number is its own until it is waited for
        pid = os.fork()
        if pid == 0:
            break
        of_child = os.pidfd_open(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        socket.send_fds(connection, [str(pid).encode()], [of_child])
        for each in (of_child, *descriptors):
            os.close(each)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    connection.close()
    for standard in (0, 1):
        os.dup2(descriptors[0], standard)
    os.close(descriptors[0])
    run(*json.loads(data))


def _reap(*_: object) -> None:
    """Wait for the children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
