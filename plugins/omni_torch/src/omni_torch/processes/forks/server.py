"""Starts stage processes as forks of an interpreter that has imported what they share (:mod:`omni_torch.processes.forks.main`).

A fork begins in milliseconds and shares the memory of the imports. It is a child of this process, not of the server, so that
supervision is the same as for a fresh interpreter, and the end of the server ends nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count

from omni_core.api import ProcessSpec
from omni_core.runtime_api import MARK_ROOM, interpreter, wait_for, with_defaults
from omni_torch.processes.forks.sources import preload_of

logger = logging.getLogger(__name__)

_REPLY_BYTES = 16384

FORK_SECONDS, IMPORT_SECONDS = 10.0, 120.0
"""Seconds that a server has to fork, if it has imported all that is to be shared, and if it has not. It takes milliseconds, and seconds;
one that is stopped or hangs is replaced.
"""


class ForkServer:
    """One server, started when it is first needed and again when it has ended. Methods are called on one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._place: tuple[dict[str, str], str, list[str]] | None = None
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._problem = ""
        self._imported: set[str] = set()

    def start(self, defaults: Mapping[str, str]) -> None:
        """Start the server, unless it runs with the environment and in the folder that a new process would have.

        Raises:
            OSError: the system cannot start another process.
        """
        place = (with_defaults(defaults), os.getcwd(), interpreter())
        if self._connection is not None and self._place == place:
            return
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*place[2], "-m", "omni_torch.processes.forks.main", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env=place[0] | MARK_ROOM,
            )
        ours.setblocking(False)
        self._imported = set()
        self._connection, self._place = ours, place
        asyncio.get_running_loop().add_reader(ours, self._read)

    def fork(self, spec: ProcessSpec, descriptors: Sequence[int]) -> asyncio.Future[int]:
        """Ask for a process.

        Args:
            descriptors: its standard error, launch spec and lifeline, and its listener if it has one.

        Returns:
            Its pid. If it is cancelled, the process is ended. OSError: it must be started in another way.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        try:
            if self._problem:
                raise OSError(self._problem)
            self.start(spec.env)
            assert self._connection is not None
            number = next(self._numbers)
            preload = preload_of(spec)
            socket.send_fds(self._connection, [json.dumps([number, spec.name, preload]).encode()], descriptors)
        except OSError as error:
            future.set_exception(error)
        else:
            self._waiting[number] = future
            # One that has answered has imported what every process needs.
            seconds = FORK_SECONDS if {"", *preload} <= self._imported else IMPORT_SECONDS
            timer = loop.call_later(seconds, self._give_up, number, seconds)

            def answered(future: asyncio.Future[int]) -> None:
                timer.cancel()
                if not future.cancelled() and future.exception() is None:
                    self._imported.update(preload, [""])

            future.add_done_callback(answered)
        return future

    def _give_up(self, number: int, seconds: float) -> None:
        """Replace a server that does not answer."""
        if number in self._waiting:
            logger.warning(
                "the fork server has not answered for %g s: it is ended, and what waited starts slowly", seconds
            )
            self._end()

    def close(self) -> None:
        """End the server. Its forks go on."""
        self._end()

    def _read(self) -> None:
        while self._connection is not None:
            try:
                data = self._connection.recv(_REPLY_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            try:
                answer = json.loads(data) if data else None
            except ValueError:
                logger.warning("a reply of the fork server cannot be read: %.100r", data)
                answer = None
            if answer is not None:
                self._answer(*answer)
            else:
                self._end(by_itself=True)

    def _answer(self, number: int, pid: int, problem: str) -> None:
        future = self._waiting.pop(number)
        if pid and problem:
            logger.warning("preload: %s", problem)
        if pid and future.cancelled():
            os.kill(pid, signal.SIGKILL)
            wait_for(pid)
        elif pid:
            future.set_result(pid)
        else:
            if not self._problem:
                logger.warning("stage processes start slowly, as they cannot be forked: %s", problem)
            self._problem = problem
            if not future.cancelled():
                future.set_exception(OSError(problem))

    def _end(self, *, by_itself: bool = False) -> None:
        if self._connection is None or self._process is None:
            return
        connection, self._connection = self._connection, None
        asyncio.get_running_loop().remove_reader(connection)
        self._process.kill()
        code = self._process.wait()
        with connection, suppress(OSError, ValueError):  # what it has forked and not told yet
            while data := connection.recv(_REPLY_BYTES):
                self._answer(*json.loads(data))
        waiting, self._waiting = [each for each in self._waiting.values() if not each.done()], {}
        if waiting and by_itself:
            logger.warning("the fork server has ended (code %d); processes that waited for it start slowly", code)
        for future in waiting:
            future.set_exception(OSError(f"the fork server has ended (code {code})"))
