"""A doorbell between processes of one host: NIXL makes progress only when polled, so a reader tells the sender to poll."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

_LOOK, _LOOK_AND_TELL = b"!", b"?"
_LONGEST = 200


class Doorbell:
    """A datagram socket in the run's private folder. Lost rings are harmless, because a waiting process also polls
    periodically.

    Args:
        directory: the folder; without one, the doorbell does nothing.
        name: of the socket in it.
        on_ring: called on the event loop when another process asks us to poll.
        on_answer: called with the path of a process that has polled as we asked.
    """

    def __init__(
        self, directory: str, name: str, on_ring: Callable[[], object], on_answer: Callable[[str], object]
    ) -> None:
        self.path = ""
        self._on_ring, self._on_answer = on_ring, on_answer
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):  # the path is too long, or there is no folder
            path = os.path.join(directory or "/nowhere", name)
            self._socket.bind(path)
            self.path = path
            self._loop.add_reader(self._socket.fileno(), self._heard)

    def ring(self, path: str, *, tell: bool = False) -> None:
        """Ask another process, by the ``path`` of its doorbell, to poll, and to answer if ``tell``."""
        if path:
            self._send(_LOOK_AND_TELL + self.path.encode() if tell else _LOOK, path)

    def _send(self, message: bytes, path: str) -> None:
        with contextlib.suppress(OSError):  # it has ended, is on another host, or its queue of rings is full
            self._socket.sendto(message, path)

    def _heard(self) -> None:
        messages = set()
        with contextlib.suppress(OSError):
            while True:
                messages.add(self._socket.recv(_LONGEST))
        if any(message == _LOOK or message.startswith(_LOOK_AND_TELL) for message in messages):
            self._on_ring()
        for message in messages:
            path = message[1:].decode(errors="replace")
            if message.startswith(_LOOK_AND_TELL):
                self._send(b"=" + self.path.encode(), path)
            elif message != _LOOK:
                self._on_answer(path)

    def close(self) -> None:
        if self.path:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.remove_reader(self._socket.fileno())
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._socket.close()
