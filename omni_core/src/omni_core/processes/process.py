"""One stage process as its parent sees it: started, read, watched, ended.

Its end is an event (a pidfd), never a poll; a pipe, its lifeline, stays open as long as the parent lives; its standard error is
read line by line, and the last lines are kept for messages.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from omni_core.forks import forget, keep_from_forks
from omni_core.processes.family import MARK, MARK_ROOM, end_family
from omni_core.processes.log_lines import LogLines
from omni_core.protocol.codec import encode
from omni_core.protocol.specs import ProcessSpec
from omni_core.stage_logs import hand_on, mark_of

KEPT_LOG_LINES = 40
_SHOWN_LOG_LINES = 8
_READ_BYTES = 65536
_LAST_READS = 16
"""Reads of the pipe of a process that has ended: a grandchild that holds it may write for ever."""


class SupervisedProcess(ABC):
    """A process as its supervisor sees it, on any machine. Methods are called on the event loop of the parent.

    Attributes:
        spec: the launch spec.
        pid: 0 until it is known.
        launched: done when the pid is known.
        address: that by which processes on other machines reach it, if there may be any; known when it is launched.
        ended: done when the process, and what it has started, has ended.
        code: its exit code, or the negative number of the signal that killed it.
    """

    where = ""
    """Follows the pid in messages."""
    address = ""

    def __init__(self, spec: ProcessSpec) -> None:
        loop = asyncio.get_running_loop()
        self.spec = spec
        self.pid = 0
        self.log: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        self.launched: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.code: int | None = None

    @property
    def running(self) -> bool:
        return self.code is None

    @property
    def reason(self) -> str:
        """The cause of its end."""
        process = f"its process (pid {self.pid}{self.where})"
        if self.code is not None and self.code < 0:
            return f"{process} was killed by signal {_signal(-self.code)}"
        return f"{process} ended with code {self.code}"

    @property
    def last_lines(self) -> str:
        """The end of its log, indented, with a line break before each line; empty if it wrote nothing."""
        return "".join(f"\n  {line}" for line in list(self.log)[-_SHOWN_LOG_LINES:])

    def keep(self, line: str) -> None:
        """Keep a line of its log, and hand it to the loggers of this process."""
        self.log.extend(hand_on(self.spec.name, mark_of(self.spec.endpoint), line))

    @abstractmethod
    def say_stop(self) -> None:
        """Close its lifeline, which even a process that is still building its stages notices."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once. Idempotent."""


def _signal(number: int) -> str:
    """The number of a signal with its name, if it has one (most real-time signals have none)."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def with_defaults(defaults: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, with ``defaults`` for what it does not set."""
    return {**defaults, **os.environ}


def interpreter() -> list[str]:
    """Return the command of a fresh interpreter. It imports from the working directory only where this one does.

    ``python -m`` does so before anything else: the ``.py`` files beside a checkpoint would stand for modules of the same names.
    """
    try:
        here = os.path.realpath(os.getcwd())
        is_importable = any(os.path.realpath(each) == here for each in sys.path)
    except OSError:  # it has been deleted
        is_importable = False
    return [sys.executable, *([] if is_importable else ["-P"])]


def wait_for(pid: int) -> int:
    """Wait for the end of a child: its exit code, or the negative number of the signal that killed it."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # other code of this process has waited for it
        return 0


Launch = Callable[[ProcessSpec, Callable[[SupervisedProcess], None]], SupervisedProcess]
"""Starts a process; the second argument is called once, with it, when it has ended. Raises OSError: it cannot be started."""


_READ_WHEN_USED = {"CUDA_VISIBLE_DEVICES", MARK}
"""Variables that what a fork has imported reads later, or never."""

Fork = Callable[[ProcessSpec, Sequence[int]], asyncio.Future[int]]
"""Makes a process that shares imports with others. Called with its spec, and descriptors of its standard error, launch spec, lifeline
and, if it has one, listener; returns its pid. If that is cancelled, the process is ended. OSError: it must be started otherwise.
"""


class StageProcess(SupervisedProcess):
    """Starts ``spec``'s process on this machine.

    Args:
        on_exit: called once, with this object, when the process has ended and the rest of its log is read.
        listener: a listening TCP socket that other machines reach it by; this object closes it.
        on_line: called with each line of its log.
        fork: makes it a fork; where that fails, by default, and with variables of its own, which what a fork
            has imported may have read already, it is a fresh interpreter.

    Raises:
        OSError: the system cannot start another process.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        on_exit: Callable[[SupervisedProcess], None],
        listener: socket.socket | None = None,
        on_line: Callable[[str], None] | None = None,
        fork: Fork | None = None,
    ) -> None:
        super().__init__(spec)
        self._on_exit = on_exit
        self._on_line = on_line
        self._loop = asyncio.get_running_loop()
        self._lines = LogLines()
        self._forking: asyncio.Future[int] | None = None
        self._wait: Callable[[], int] | None = None
        self._is_killed = False
        self._pidfd = self._lifeline = self._errors = -1
        self._own: list[int] = []
        try:
            self._errors, stderr = os.pipe()
            self._own.append(stderr)
            os.set_blocking(self._errors, False)
            document = os.memfd_create("omni-spec")
            self._own.append(document)
            os.write(document, encode(spec))
            os.lseek(document, 0, os.SEEK_SET)
            lifeline, self._lifeline = os.pipe()
            self._own.append(lifeline)
            keep_from_forks(self._lifeline)
            if listener is not None:
                self._own.append(listener.detach())
            if fork is None or spec.own_env.keys() - _READ_WHEN_USED:
                self._spawn()
            else:
                self._forking = fork(spec, self._own)
                self._forking.add_done_callback(self._forked)
        except BaseException:
            self.say_stop()
            self._close(*(each for each in (self._errors,) if each >= 0))
            raise

    def _forked(self, forking: asyncio.Future[int]) -> None:
        pid = 0 if forking.cancelled() or forking.exception() else forking.result()
        try:
            if pid:
                self._begin(pid, partial(wait_for, pid))
                if self._is_killed:
                    self.kill()
            elif forking.cancelled() or self._is_killed:
                self._end(-signal.SIGKILL)
            else:
                self._spawn()
        except OSError as error:
            self._keep([f"it could not be started: {error}"])
            self._end(1)

    def _spawn(self) -> None:
        """Start a fresh interpreter."""
        stderr, *inherited = self._own
        process = subprocess.Popen(
            [*interpreter(), "-m", "omni_core.processes.main", *map(str, inherited)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=inherited,
            # A process group of its own: a terminal's Ctrl-C reaches the parent, which ends its children in order.
            process_group=0,
            env={**with_defaults(self.spec.env), **self.spec.own_env, **MARK_ROOM},
        )
        self._begin(process.pid, process.wait)

    def _begin(self, pid: int, wait: Callable[[], int]) -> None:
        """Watch the process, which runs."""
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:  # no descriptor is left: a process that cannot be watched must not run
            os.kill(pid, signal.SIGKILL)
            wait()
            raise
        self.pid, self._wait = pid, wait
        self._close()
        self.launched.set_result(None)
        self._loop.add_reader(self._errors, self._read_errors)
        self._loop.add_reader(self._pidfd, self._exited)

    def _close(self, *descriptors: int) -> None:
        """Close what only the process needs, and ``descriptors``."""
        own, self._own = self._own, []
        for descriptor in (*own, *descriptors):
            os.close(descriptor)

    def say_stop(self) -> None:
        if self._lifeline >= 0:
            forget(self._lifeline)
            os.close(self._lifeline)
            self._lifeline = -1

    def kill(self) -> None:
        if self.pid and self.running:
            os.kill(self.pid, signal.SIGKILL)
        elif self._forking is not None:
            self._is_killed = True  # it may be forked already, which this object hears of in the next turn of the loop
            self._forking.cancel()

    def _read_errors(self) -> bool:
        """Read a piece of its log. Returns False if there is none now."""
        try:
            data = os.read(self._errors, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._errors)
        self._keep(self._lines.feed(data))
        return bool(data)

    def _keep(self, lines: list[str]) -> None:
        for line in lines:
            self.keep(line)
            if self._on_line is not None:
                self._on_line(line)

    def _exited(self) -> None:
        assert self._wait is not None
        with suppress(OSError):  # until it is waited for, its number is that of no other group
            os.killpg(self.pid, signal.SIGKILL)
        code = self._wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Not until the end of the pipe: a grandchild may hold it open.
        for _ in range(_LAST_READS):
            if not self._read_errors():
                break
        self._keep(self._lines.finish())
        self._loop.remove_reader(self._errors)
        self._end(code)

    def _end(self, code: int) -> None:
        self.code = code
        self._close(self._errors)
        self.say_stop()
        self.launched.cancel()
        self._on_exit(self)
        run = self.spec.own_env.get(MARK)
        try:
            family = self._loop.run_in_executor(None, end_family, run, self.pid) if run and self.pid else None
        except RuntimeError:  # there is no thread for it: the end of the run does the same
            family = None
        if family is None:
            self.ended.set_result(None)
        else:
            family.add_done_callback(lambda _: self.ended.set_result(None))
