"""The two ends of a connection between processes of one host: Unix-domain stream sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from omni_core.control.peer import LENGTH_BYTES
from omni_core.errors import TransportError

_READ_BYTES = 256 * 1024


class UnixLink:
    """The sending end: a :class:`omni_core.control.peer.Link`."""

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = connection
        self._loop = loop
        self.write = connection.send
        connection.setblocking(False)

    @classmethod
    def open(cls, endpoint: str, loop: asyncio.AbstractEventLoop) -> UnixLink | None:
        """Connect, if somebody listens there."""
        path = _path(endpoint)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
            return None
        return cls(connection, loop)

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        if callback is None:
            self._loop.remove_writer(self._socket.fileno())
        else:
            self._loop.add_writer(self._socket.fileno(), callback)

    def close(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()


class UnixListener:
    """The receiving end: every document of everybody who connects.

    Args:
        endpoint: ``ipc://PATH``; its folder must be private (0700).

    Raises:
        TransportError: the socket cannot be made.
    """

    def __init__(
        self, endpoint: str, loop: asyncio.AbstractEventLoop, on_document: Callable[[memoryview], None]
    ) -> None:
        self._loop = loop
        self._on_document = on_document
        self._incoming: set[_Incoming] = set()
        self._socket = _listen(_path(endpoint))
        loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._socket.accept()
            self._incoming.add(_Incoming(connection, self._loop, self._on_document, self._incoming.discard))

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for incoming in list(self._incoming):
            incoming.close()


class _Incoming:
    """One connection: cuts the stream into documents."""

    def __init__(
        self,
        connection: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_document: Callable[[memoryview], None],
        on_close: Callable[[_Incoming], None],
    ) -> None:
        self._socket = connection
        self._loop = loop
        self._on_document = on_document
        self._on_close = on_close
        self._buffer = bytearray(_READ_BYTES)
        self._filled = 0
        connection.setblocking(False)
        loop.add_reader(connection.fileno(), self._read)

    def _read(self) -> None:
        with memoryview(self._buffer) as view:
            try:
                count = self._socket.recv_into(view[self._filled :])
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if not count:
                self.close()
                return
            self._filled += count
            taken, wanted = self._cut(view)
            if taken:
                self._filled -= taken
                view[: self._filled] = view[taken : taken + self._filled]
        if wanted > len(self._buffer):
            self._buffer.extend(bytes(wanted - len(self._buffer)))
        elif not self._filled and len(self._buffer) > _READ_BYTES:
            self._buffer = bytearray(_READ_BYTES)  # a large message came and went

    def _cut(self, view: memoryview) -> tuple[int, int]:
        """Hand on every complete document. How many bytes those took, and how many the next one needs in all."""
        start = 0
        while self._filled - start >= LENGTH_BYTES:
            end = start + LENGTH_BYTES + int.from_bytes(view[start : start + LENGTH_BYTES], "little")
            if end > self._filled:
                return start, end - start
            self._on_document(view[start + LENGTH_BYTES : end])
            start = end
        return start, 0

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._on_close(self)


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
