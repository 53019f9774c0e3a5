"""The control plane: small messages over ZMQ, PUSH/PULL from anyone to a process, PUB/SUB for aborts (seed 001).

Sockets are read from the event loop through their file descriptor. That descriptor is edge-triggered: it says that the
socket's state *may* have changed, so a reader drains until the socket itself says that nothing is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import zmq

from omni_core.errors import CodecError, TransportError
from omni_core.protocol.codec import decode, encode

logger = logging.getLogger(__name__)

HIGH_WATER_MARK = 20_000
"""Messages that may wait for one peer. Admission bounds what is in flight; a peer this far behind is not reading."""

_DRAIN_AT_ONCE = 256
"""Messages handled per wake-up before other tasks of the loop get their turn."""


class _Context(zmq.Context["zmq.Socket[bytes]"]):
    """A context that the garbage collector never terminates.

    pyzmq terminates a forgotten context when it is collected, and that waits for its sockets, which are garbage of the same
    round and not closed yet: the whole process would hang. A plane that is closed terminates its context itself.
    """

    def __del__(self) -> None:
        return


class ControlPlane:
    """One process's end of the control plane. All methods are called from its event loop.

    Args:
        endpoint: the address that this process pulls from, ``ipc://...``.
        on_message: called with every decoded message.
        broadcast: the address of the abort broadcast.
        publishes: whether this end binds ``broadcast`` (the coordinator) or subscribes to it (every other process).
    """

    def __init__(
        self, endpoint: str, on_message: Callable[[Any], None], broadcast: str, *, publishes: bool = False
    ) -> None:
        self.endpoint = endpoint
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._context = _Context()
        self._peers: dict[str, zmq.Socket[bytes]] = {}
        self._closed = False
        self._pull = self._socket(zmq.PULL)
        self._pull.bind(endpoint)
        if publishes:
            # XPUB is PUB that also shows its subscriptions, so that nobody starts before every process can hear an abort.
            self._broadcast = self._socket(zmq.XPUB)
            self._broadcast.setsockopt(zmq.XPUB_VERBOSER, 1)  # show every one, not only the first of its kind
            self._broadcast.bind(broadcast)
            self._loop.add_reader(_descriptor(self._broadcast), self._count_subscribers)
        else:
            self._broadcast = self._socket(zmq.SUB)
            self._broadcast.subscribe(b"")
            self._broadcast.connect(broadcast)
            self._loop.add_reader(_descriptor(self._broadcast), self._drain, self._broadcast)
        self._loop.add_reader(_descriptor(self._pull), self._drain, self._pull)
        self._subscribers = 0
        self._subscribed = asyncio.Event()
        self._loop.call_soon(self._drain, self._pull)
        self._loop.call_soon(self._count_subscribers if publishes else lambda: self._drain(self._broadcast))

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(HIGH_WATER_MARK)
        socket.linger = 0
        return socket

    def send(self, endpoint: str, message: Any) -> None:
        """Queue ``message`` for the process at ``endpoint``; never blocks.

        Raises:
            CodecError: the message holds something that cannot be sent.
            TransportError: the peer has left :data:`HIGH_WATER_MARK` messages unread.
        """
        self._send_bytes(endpoint, encode(message))

    def _send_bytes(self, endpoint: str, document: bytes) -> None:
        if self._closed:
            return
        peer = self._peers.get(endpoint)
        if peer is None:
            peer = self._peers[endpoint] = self._socket(zmq.PUSH)
            peer.connect(endpoint)
        try:
            peer.send(document, zmq.NOBLOCK)
        except zmq.Again:
            raise TransportError(
                f"{endpoint} has left {HIGH_WATER_MARK} messages unread; is its process stopped?"
            ) from None

    def publish(self, message: Any) -> None:
        """Send ``message`` to every subscribed process."""
        if not self._closed:
            self._broadcast.send(encode(message), zmq.NOBLOCK)
            self._count_subscribers()

    async def wait_for_subscribers(self, count: int) -> None:
        """Return once ``count`` processes hear the broadcast."""
        while self._subscribers < count:
            self._subscribed.clear()
            await self._subscribed.wait()

    def _count_subscribers(self) -> None:
        while not self._closed and _readable(self._broadcast):
            self._subscribers += 1 if self._broadcast.recv(zmq.NOBLOCK)[:1] == b"\x01" else -1
            self._subscribed.set()

    def _drain(self, socket: zmq.Socket[bytes]) -> None:
        for _ in range(_DRAIN_AT_ONCE):
            if self._closed or not _readable(socket):
                return
            try:
                message = decode(socket.recv(zmq.NOBLOCK))
            except CodecError as error:
                logger.error("a control message was dropped: %s", error)
                continue
            self._on_message(message)
        self._loop.call_soon(self._drain, socket)

    def close(self) -> None:
        """Close every socket; what is queued for others and not yet written is dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            for socket in (self._pull, self._broadcast):
                self._loop.remove_reader(_descriptor(socket))
        finally:
            for socket in (self._pull, self._broadcast, *self._peers.values()):
                socket.close(linger=200)
            self._context.term()


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
