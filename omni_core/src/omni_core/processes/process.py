"""One stage process as its parent sees it: started, read, watched, ended.

Its end is an event (a pidfd), never a poll; its standard input stays open as long as the parent lives; its standard error is
read line by line and the last lines are kept for messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from omni_core.processes.main import pack_spec
from omni_core.protocol.specs import ProcessSpec

logger = logging.getLogger(__name__)

KEPT_LOG_LINES = 40
_SHOWN_LOG_LINES = 8
_READ_BYTES = 65536


class SupervisedProcess(ABC):
    """What a supervisor knows of a process, wherever it runs. Methods are called on the event loop of the parent.

    Attributes:
        spec: what it was started with. pid: 0 while that is not known. ended: done when it has ended.
        is_ready, unanswered_since: kept by the supervisor.
    """

    where = ""
    """Said behind the pid in messages."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.pid = 0
        self.log: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        self.is_ready = False
        self.unanswered_since: float | None = None
        self.ended = asyncio.get_running_loop().create_future()
        self.code: int | None = None

    @property
    def running(self) -> bool:
        return self.code is None

    @property
    def reason(self) -> str:
        """How it ended."""
        process = f"its process (pid {self.pid}{self.where})"
        if self.code is not None and self.code < 0:
            return f"{process} was killed by signal {-self.code} ({signal.Signals(-self.code).name})"
        return f"{process} ended with code {self.code}"

    @property
    def last_lines(self) -> str:
        """The end of its log, indented, with a line break before each line; empty if it wrote nothing."""
        return "".join(f"\n  {line}" for line in list(self.log)[-_SHOWN_LOG_LINES:])

    def keep(self, line: str) -> None:
        """A line of its log."""
        self.log.append(line)
        logger.info("%s: %s", self.spec.name, line)

    @abstractmethod
    def say_stop(self) -> None:
        """Close its standard input: heard even by a process that is still building its stages."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once. Idempotent."""


Launch = Callable[[ProcessSpec, Callable[[SupervisedProcess], None]], SupervisedProcess]
"""Starts a process; the second argument is called once, with it, when it has ended. Raises OSError: it cannot be started."""


class StageProcess(SupervisedProcess):
    """Starts ``spec``'s process on this host.

    Args:
        on_exit: called once, with this object, when the process has ended and its last words are read.
        listener: a listening TCP socket that other hosts reach it by.
        on_line: called with each line of its log.

    Raises:
        OSError: the system cannot start another process.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        on_exit: Callable[[SupervisedProcess], None],
        listener: socket.socket | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(spec)
        self._on_exit = on_exit
        self._on_line = on_line
        self._loop = asyncio.get_running_loop()
        self._partial = b""
        document = os.memfd_create("omni-spec", 0)
        inherited = [document] if listener is None else [document, listener.fileno()]
        try:
            os.write(document, pack_spec(spec))
            os.lseek(document, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "omni_core.processes.main", *map(str, inherited)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=inherited,
                # A process group of its own: a terminal's Ctrl-C reaches the parent, which ends its children in order.
                process_group=0,
                env={**os.environ, **{name: value for name, value in spec.env.items() if name not in os.environ}},
            )
        finally:
            os.close(document)
        self.pid = self._process.pid
        assert self._process.stderr is not None
        self._errors = self._process.stderr.fileno()
        os.set_blocking(self._errors, False)
        self._loop.add_reader(self._errors, self._read_errors)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._exited)

    def say_stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        if self.running:
            self._process.kill()

    def _read_errors(self) -> None:
        try:
            data = os.read(self._errors, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._errors)
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self.keep(text)
        if self._on_line is not None:
            self._on_line(text)

    def _exited(self) -> None:
        self.code = self._process.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._read_last_words()
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        self._process.stderr.close()
        self.ended.set_result(None)
        self._on_exit(self)

    def _read_last_words(self) -> None:
        """What lies in the pipe now. Not until its end: a grandchild may hold it open."""
        try:
            while data := os.read(self._errors, _READ_BYTES):
                self._partial += data
        except BlockingIOError:
            pass
        for line in self._partial.split(b"\n"):
            if line:
                self._keep(line)
        self._loop.remove_reader(self._errors)
