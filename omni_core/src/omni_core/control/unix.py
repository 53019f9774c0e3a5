"""The two ends of a connection between processes of one host: Unix-domain stream sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence

from omni_core.control.framing import FrameReader
from omni_core.control.network import OnFrame
from omni_core.errors import CodecError, TransportError
from omni_core.forks import forget, keep_from_forks

_PARTS_AT_ONCE = 256
"""The most pieces of memory per system call; Linux takes 1024."""


class UnixLink:
    """The sending end: a :class:`omni_core.control.sender.Link`."""

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = connection
        self._loop = loop
        connection.setblocking(False)
        keep_from_forks(connection.fileno())

    @classmethod
    def open(cls, endpoint: str, loop: asyncio.AbstractEventLoop) -> UnixLink | None:
        """Connect; ``None`` if no process listens there."""
        path = _path(endpoint)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
            return None
        return cls(connection, loop)

    def write(self, parts: Sequence[memoryview]) -> int:
        if len(parts) == 1:
            return self._socket.send(parts[0])
        return self._socket.sendmsg(parts[:_PARTS_AT_ONCE])

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        if callback is None:
            self._loop.remove_writer(self._socket.fileno())
        else:
            self._loop.add_writer(self._socket.fileno(), callback)

    def close(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        forget(self._socket.fileno())
        self._socket.close()


class UnixListener:
    """The receiving end: every frame of every process that connects.

    Args:
        endpoint: ``ipc://PATH``; its folder must be private (0700).
        on_nonsense: called with the pid of a process and the reason when it has sent what is no message; its connection is closed.

    Raises:
        TransportError: the socket cannot be made.
    """

    def __init__(
        self,
        endpoint: str,
        loop: asyncio.AbstractEventLoop,
        on_frame: OnFrame,
        on_nonsense: Callable[[int, str], None] = lambda pid, reason: None,
    ) -> None:
        self._loop = loop
        self._on_frame = on_frame
        self._on_nonsense = on_nonsense
        self._incoming: set[_Incoming] = set()
        self._path = _path(endpoint)
        self._socket = _listen(self._path)
        loop.add_reader(self._socket.fileno(), self._accept)

    def renew(self) -> None:
        """Listen anew if the socket's file is gone; connections go on.

        Raises:
            TransportError: the socket cannot be made.
        """
        if not os.path.exists(self._path):
            fresh, old = _listen(self._path), self._socket
            self._loop.remove_reader(old.fileno())
            old.close()
            self._socket = fresh
            self._loop.add_reader(fresh.fileno(), self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._socket.accept()
            self._incoming.add(
                _Incoming(connection, self._loop, self._on_frame, self._on_nonsense, self._incoming.discard)
            )

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for incoming in list(self._incoming):
            incoming.close()


class _Incoming:
    """One connection of another process to us."""

    def __init__(
        self,
        connection: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_frame: OnFrame,
        on_nonsense: Callable[[int, str], None],
        on_close: Callable[[_Incoming], None],
    ) -> None:
        self._socket = connection
        self._loop = loop
        self._frames = FrameReader(on_frame)
        self._on_nonsense = on_nonsense
        self._on_close = on_close
        connection.setblocking(False)
        loop.add_reader(connection.fileno(), self._read)

    def _read(self) -> None:
        with self._frames.room() as room:
            try:
                count = self._socket.recv_into(room)
            except BlockingIOError:
                return
            except OSError:
                count = 0
        if not count:
            self.close()
            return
        try:
            self._frames.received(count)
        except (CodecError, TransportError) as error:
            pid = _peer_of(self._socket)
            self.close()
            self._on_nonsense(pid, str(error))

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._on_close(self)


def _peer_of(connection: socket.socket) -> int:
    """Return the pid of the process that has connected."""
    credentials = struct.Struct("3i")
    pid, _, _ = credentials.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return int(pid)


def _path(endpoint: str) -> str:
    scheme, _, path = endpoint.partition("://")
    if scheme != "ipc" or not path:
        raise TransportError(f"{endpoint!r} is no address of a control socket; it must be of the form ipc://PATH")
    return path


def _listen(path: str) -> socket.socket:
    """A listening socket at ``path``; a dead predecessor's file is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise TransportError(f"the control socket {path} cannot be made: {error}") from error
    return listener
