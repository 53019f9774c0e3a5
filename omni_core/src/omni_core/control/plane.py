"""The control plane: small messages from any process of a pipeline to any other, over Unix-domain stream sockets.

One connection per sender and receiver, made at the first message, so messages between two processes keep their order. What
was sent lies in the kernel and arrives even if the sender dies. A message for a peer that does not read, or is not up, waits
here, bounded (:mod:`omni_core.control.peer`). See ``docs/decisions/0004-direct-sockets.md`` for why there is no broker and no I/O
thread in between. The sockets of one host are those of :mod:`omni_core.control.unix`; peers on other hosts are reached over TCP
(:mod:`omni_core.control.curve`), and nothing else is different for them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from omni_core.control.lanes import in_task
from omni_core.control.peer import Link, Peer, Work
from omni_core.control.unix import UnixLink, UnixListener
from omni_core.errors import CodecError, OmniError
from omni_core.protocol.codec import decode, encode

if TYPE_CHECKING:
    from omni_core.control.curve import CurveListener

logger = logging.getLogger(__name__)


@frozen
class Abroad:
    """How a process reaches, and is reached from, other hosts.

    Attributes:
        context: keys and sockets, a :class:`omni_core.control.curve.CurveContext`. Closed by the control plane.
        listener: the TCP socket that others reach this process by; ``None``: nobody has to.
        routes: endpoint of a peer on another host to the ``tcp://`` address that reaches it.
        on_lost: called with endpoint and reason when a connection to another host has ended, or cannot be made.
    """

    context: Any
    listener: socket.socket | None = None
    routes: dict[str, str] = field(factory=dict)
    on_lost: Callable[[str, str], None] = lambda endpoint, reason: None


class ControlPlane:
    """One process's end of the control plane, bound to its event loop. :meth:`send` may be called from any thread.

    It sends from the beginning, and reads from :meth:`listen` on: until then connections are refused, so that nobody gives work
    to a process that is not ready for it.

    Args:
        endpoint: the address that this process reads, ``ipc://PATH``; its folder must be private (0700).
        on_message: called on the event loop with every decoded message.
        abroad: where peers live on other hosts.
    """

    def __init__(self, endpoint: str, on_message: Callable[[Any], None], abroad: Abroad | None = None) -> None:
        self._on_message = on_message
        self._abroad = abroad
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._peers: dict[str, Peer] = {}
        self._closed = False
        self._endpoint = endpoint
        self._listeners: list[UnixListener | CurveListener] = []

    def listen(self) -> None:
        """Begin to read the endpoint.

        Raises:
            TransportError: its socket cannot be made.
        """
        self._listeners.append(UnixListener(self._endpoint, self._loop, self._on_document))
        if self._abroad is not None and self._abroad.listener is not None:
            from omni_core.control.curve import CurveListener

            self._listeners.append(CurveListener(self._abroad.context, self._abroad.listener, self._on_document))

    def send(self, endpoint: str, message: Any, work: Work | None = None) -> None:
        """Queue ``message`` for the process at ``endpoint``; never blocks.

        Args:
            work: the request that the message carries forward and the stage it is for, where it does: what
                :meth:`peer_is_down` and :meth:`forget` go by.

        Raises:
            CodecError: the message holds something that cannot be sent.
            TransportError: the peer has left :data:`~omni_core.control.peer.HIGH_WATER_MARK` messages unread.
        """
        document = encode(message)
        if threading.get_ident() == self._thread:
            self._send_bytes(endpoint, document, work)
        else:
            self._loop.call_soon_threadsafe(self._send_late, endpoint, document, work)

    def _send_bytes(self, endpoint: str, document: bytes, work: Work | None) -> None:
        if self._closed:
            return
        peer = self._peers.get(endpoint)
        if peer is None:
            peer = self._peers[endpoint] = self._make_peer(endpoint)
            peer.connect()
        peer.send(document, work)

    def _make_peer(self, endpoint: str) -> Peer:
        return Peer(endpoint, self._loop, self._open_link)

    def _open_link(self, peer: Peer) -> Link | None:
        """A connection to a peer, or ``None`` if it is not there."""
        abroad = self._abroad
        if abroad is None or peer.endpoint not in abroad.routes:
            return UnixLink.open(peer.endpoint, self._loop)
        from omni_core.control.curve import CurveLink

        def lost(reason: str) -> None:
            if peer.lose(link):
                abroad.on_lost(peer.endpoint, reason)

        link = CurveLink(abroad.context, abroad.routes[peer.endpoint], lost)
        return link

    def _send_late(self, endpoint: str, document: bytes, work: Work | None) -> None:
        try:
            self._send_bytes(endpoint, document, work)
        except OmniError:
            logger.exception("a message to %s was lost", endpoint)

    def is_behind(self, endpoint: str) -> bool:
        """Return True if so much waits for a peer that senders must await :meth:`room` before they send more of a request."""
        peer = self._peers.get(endpoint)
        return peer is not None and peer.is_behind

    async def room(self, endpoint: str) -> None:
        """Wait until the peer at ``endpoint`` is no longer behind."""
        await in_task()
        if self.is_behind(endpoint):
            await self._peers[endpoint].room()

    # --- peers that die and come back ----------------------------------------------------------------------------------
    def peer_is_down(self, endpoint: str) -> list[Work]:
        """The process at ``endpoint`` has died: hold back what is for it.

        Returns the work of which something was written to that process; what waits is kept for its successor.
        """
        peer = self._peers.get(endpoint)
        return [] if peer is None else peer.disconnect()

    def peer_is_up(self, endpoint: str) -> None:
        """A new process reads ``endpoint``: send it what waits."""
        peer = self._peers.get(endpoint)
        if peer is not None:
            peer.connect()

    def peer_has_failed(self, endpoint: str, error: OmniError) -> list[Work]:
        """Nothing will read ``endpoint`` any more: later messages to it raise ``error``. Returns the work that waited."""
        peer = self._peers.get(endpoint)
        if peer is None:
            peer = self._peers[endpoint] = self._make_peer(endpoint)
        return peer.fail(error)

    def drop(self, endpoint: str) -> None:
        """Forget a peer for good: its connection, and what waits for it."""
        peer = self._peers.pop(endpoint, None)
        if peer is not None:
            peer.disconnect()

    def forget(self, request_id: str) -> None:
        """Drop what waits for any peer on behalf of a request that is over."""
        for peer in self._peers.values():
            peer.forget(request_id)

    # --- reading -------------------------------------------------------------------------------------------------------
    def _on_document(self, document: memoryview) -> None:
        try:
            message = decode(document)
        except CodecError as error:
            logger.error("a control message was dropped: %s", error)
            return
        if self._closed:
            return
        try:
            self._on_message(message)
        except Exception:  # the documents behind it in the stream are others' business
            logger.exception("a %s could not be handled", type(message).__name__)

    def close(self) -> None:
        """Close every socket. What could not be written yet is dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for peer in self._peers.values():
            peer.disconnect()
        for listener in self._listeners:
            listener.close()
        if self._abroad is not None:
            self._abroad.context.close()
