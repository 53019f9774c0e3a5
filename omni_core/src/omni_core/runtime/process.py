"""One stage process as its parent sees it: started, read, watched, ended.

Its end is an event (a pidfd), never a poll; its standard input stays open as long as the parent lives; its standard error is
read line by line and the last lines are kept for messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable

from omni_core.runtime.child import pack_spec
from omni_core.runtime.spec import ProcessSpec

logger = logging.getLogger(__name__)

KEPT_LOG_LINES = 40
_SHOWN_LOG_LINES = 8
_READ_BYTES = 65536


class StageProcess:
    """Starts ``spec``'s process. Methods are called on the event loop of the parent.

    Args:
        on_exit: called once, with this object, when the process has ended and its last words are read.

    Raises:
        OSError: the system cannot start another process.
    """

    def __init__(self, spec: ProcessSpec, on_exit: Callable[[StageProcess], None]) -> None:
        self.spec = spec
        self.log: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        self.is_ready = False
        self.unanswered_since: float | None = None
        self.ended = asyncio.get_running_loop().create_future()
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._partial = b""
        document = os.memfd_create("omni-spec", 0)
        try:
            os.write(document, pack_spec(spec))
            os.lseek(document, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "omni_core.runtime.child", str(document)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[document],
                # A process group of its own: a terminal's Ctrl-C reaches the parent, which ends its children in order.
                process_group=0,
                env={**os.environ, **{name: value for name, value in spec.env.items() if name not in os.environ}},
            )
        finally:
            os.close(document)
        assert self._process.stderr is not None
        self._errors = self._process.stderr.fileno()
        os.set_blocking(self._errors, False)
        self._loop.add_reader(self._errors, self._read_errors)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._exited)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def reason(self) -> str:
        """How it ended."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"its process (pid {self.pid}) was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"its process (pid {self.pid}) ended with code {code}"

    @property
    def last_lines(self) -> str:
        """The end of its log, indented, with a line break before each line; empty if it wrote nothing."""
        return "".join(f"\n  {line}" for line in list(self.log)[-_SHOWN_LOG_LINES:])

    def say_stop(self) -> None:
        """Close its standard input: heard even by a process that is still building its stages."""
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
        self.log.append(text)
        logger.info("%s: %s", self.spec.name, text)

    def _exited(self) -> None:
        self._process.wait()
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
