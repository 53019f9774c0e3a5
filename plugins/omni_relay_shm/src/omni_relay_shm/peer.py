"""Another process's pool, mapped into this one, until some time after that process has ended."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable

from omni_core.api import PeerDiedError, RelayError
from omni_relay_shm.pool import PoolMemory

_UNREAD_SECONDS = 5.0
"""Seconds for which the pool of a dead process stays mapped: messages that it has sent may still be unread in this
process.
"""


class PeerPool:
    """A mapping of the pool of process ``pid``, and the pipe that wakes its owner.

    Args:
        descriptor, pipe: the owner's descriptors of the pool and of the pipe's writing end, opened through ``/proc``.
        token: the pool's first bytes; a later process with the same number has another.
        on_death: called with the token some time after the owner's death.

    Raises:
        PeerDiedError: the process has ended. RelayError: its pool cannot be opened.
    """

    def __init__(
        self, pid: int, descriptor: int, pipe: int, size: int, token: bytes, on_death: Callable[[bytes], None]
    ) -> None:
        try:
            source = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or has_ended(pid):
                raise PeerDiedError(f"process {pid}, whose pool holds the bytes, has ended") from error
            raise RelayError(f"the pool of process {pid} cannot be opened: {error}") from error
        try:
            self.memory = PoolMemory(source, size)
            if self.memory.token != token:
                self.memory.close()
                raise PeerDiedError(f"process {pid} holds another pool than the message says; the sender has ended")
        except (OSError, ValueError) as error:
            raise RelayError(f"the pool of process {pid} cannot be mapped: {error}") from error
        finally:
            os.close(source)
        try:
            self.pipe: int | None = os.open(f"/proc/{pid}/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.pipe = None  # the owner is ending, and does not wait for a release
        self._token = token
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._died()
        else:
            self._loop.add_reader(self._pidfd, self._died)

    def _died(self) -> None:
        self._unwatch()
        self._timer = self._loop.call_later(_UNREAD_SECONDS, self._on_death, self._token)

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def wake(self) -> None:
        """Wake the owner after a release."""
        if self.pipe is not None:
            try:
                os.write(self.pipe, b"\0")
            except (BlockingIOError, BrokenPipeError):
                return  # a full pipe wakes its reader as well; a broken one has none

    def close(self) -> None:
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self.memory.close()
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None


def has_ended(pid: int) -> bool:
    """Return True if a process has ended, even if its parent has not reaped it yet."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        return bool(end.poll(0))
    finally:
        os.close(descriptor)
