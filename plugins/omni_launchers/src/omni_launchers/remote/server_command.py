"""The command that runs the server of one host: started, watched by its end and what it writes, and stopped."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from omni_core.api import StartupError, watched
from omni_core.runtime_api import Tasks

logger = logging.getLogger(__name__)

STOP_SECONDS, KILL_SECONDS = 6.0, 2.0
"""The time that a server has to end by itself, once its standard input has; then the time that the command has, once it is told to."""

_LINES, _CHARACTERS = 20, 500
"""The most that is kept of its standard error: lines, and characters of each."""


class ServerEndedError(StartupError):
    """The command has ended."""


class ServerCommand:
    """Runs the server of one host, any number of times, one at a time.

    Args:
        host: its name, for messages.
        arguments: the command.
        keys: what it reads first from its standard input, which then stays open.
    """

    def __init__(self, host: str, arguments: Sequence[str], keys: str) -> None:
        self._host = host
        self._arguments = list(arguments)
        self._keys = keys
        self._process: asyncio.subprocess.Process | None = None
        self._written: deque[str] = deque(maxlen=_LINES)
        self._reading: asyncio.Future[None] | None = None
        self._ending = Tasks()

    async def start(self) -> None:
        """Start it, after the end of an older one.

        Raises:
            StartupError: there is no such program here.
        """
        await self.stop()
        self._written.clear()
        try:
            # In a session of its own: Ctrl-C at the terminal is this program's, which then stops it in order.
            process = await asyncio.create_subprocess_exec(
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise StartupError(
                f"host {self._host!r}: {self._arguments[0]} cannot be started: {error.strerror}"
            ) from error
        self._process = process
        assert process.stdin is not None
        assert process.stderr is not None
        self._reading = watched(self._read(process.stderr), f"the reading of host {self._host!r}")
        with suppress(ConnectionError):  # it has ended at once, and has said why
            process.stdin.write(self._keys.encode())
            await process.stdin.drain()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        rest = ""
        while data := await stream.read(4096):
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            for line in lines:
                self._keep(line)
            rest = rest[:_CHARACTERS]
        self._keep(rest)

    def _keep(self, line: str) -> None:
        if line.strip():
            self._written.append(line.rstrip()[:_CHARACTERS])
            logger.info("host %r: %s", self._host, self._written[-1])

    async def ended(self) -> ServerEndedError:
        """Wait for its end; return that as an error, with what it has written last."""
        assert self._process is not None
        assert self._reading is not None
        code = await self._process.wait()
        with suppress(TimeoutError):  # a descendant may hold standard error open
            await asyncio.wait_for(asyncio.shield(self._reading), 1.0)
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        said = "".join(f"\n  {line}" for line in self._written)
        started = f"host {self._host!r}: its server has ended ({how}), started by: {shlex.join(self._arguments)}"
        return ServerEndedError(f"{started}; it wrote{':' if said else ' nothing'}{said}")

    def abandon(self) -> None:
        """Stop it without waiting: it leads to a host that is lost."""
        process, self._process = self._process, None
        if process is not None:
            self._ending.start(self._end(process, 0.0))

    async def stop(self) -> None:
        """End its standard input, which ends the server, and wait; after :data:`STOP_SECONDS` signal the command."""
        process, self._process = self._process, None
        if process is not None:
            self._ending.start(self._end(process, STOP_SECONDS))
        if self._ending:
            await asyncio.wait(list(self._ending))

    async def _end(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        assert process.stdin is not None
        process.stdin.close()
        for pause, signal in ((seconds, process.terminate), (KILL_SECONDS, process.kill)):
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), pause)
            if process.returncode is not None:
                return
            with suppress(ProcessLookupError):
                signal()
        await process.wait()
