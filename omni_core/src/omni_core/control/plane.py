"""The control plane: small messages from any process of a pipeline to any other, over Unix-domain stream sockets.

One connection per sender and receiver, made at the first message, so messages between two processes keep their order. What
was sent lies in the kernel and arrives even if the sender dies. A message for a peer that does not read, or is not up, waits
in its :class:`~omni_core.control.peer.Peer`. ``docs/decisions/0004-direct-sockets.md`` says why there is no broker and no I/O
thread. Sockets of one host are in :mod:`omni_core.control.unix`; peers on other hosts are reached over TCP
(:mod:`omni_core.control.curve`), and nothing else is different for them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from omni_core.control.framing import Frame, Work, frame
from omni_core.control.lanes import in_task
from omni_core.control.sender import Link, Sender
from omni_core.control.unix import UnixLink, UnixListener
from omni_core.errors import CodecError, OmniError
from omni_core.protocol.codec import decode

if TYPE_CHECKING:
    from omni_core.control.curve import CurveListener

logger = logging.getLogger(__name__)


@frozen
class RemoteRoutes:
    """The ways of a process to other hosts, and theirs to it.

    Attributes:
        context: keys and sockets, a :class:`omni_core.control.curve.CurveContext`. Closed by the control plane.
        listener: the TCP socket by which other hosts reach this process; ``None`` if none has to.
        routes: endpoint of a peer on another host to the ``tcp://`` address that reaches it.
        on_lost: called with endpoint and reason when a connection to another host has ended, or cannot be made.
    """

    context: Any
    listener: socket.socket | None = None
    routes: dict[str, str] = field(factory=dict)
    on_lost: Callable[[str, str], None] = lambda endpoint, reason: None


class ControlPlane:
    """One process's end of the control plane, bound to its event loop. :meth:`send` may be called from any thread.

    It sends from the beginning, and reads from :meth:`listen` on: until then connections are refused, so that no work reaches a
    process that is not ready for it.

    Args:
        endpoint: the address that this process reads, ``ipc://PATH``; its folder must be private (0700).
        on_message: called on the event loop with every decoded message.
        remote: where peers live on other hosts.
        ask_in_flight: called when many requests have been sent on: find out which are in flight, then call :meth:`keep`.
    """

    def __init__(
        self,
        endpoint: str,
        on_message: Callable[[Any], None],
        remote: RemoteRoutes | None = None,
        ask_in_flight: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_message = on_message
        self._remote = remote
        self._ask_in_flight = ask_in_flight
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._senders: dict[str, Sender] = {}
        self._asking = False
        self._closed = False
        self._endpoint = endpoint
        self._listeners: list[UnixListener | CurveListener] = []

    def listen(self) -> None:
        """Begin to read the endpoint.

        Raises:
            TransportError: its socket cannot be made.
        """
        self._listeners.append(UnixListener(self._endpoint, self._loop, self._on_frame))
        if self._remote is not None and self._remote.listener is not None:
            from omni_core.control.curve import CurveListener

            self._listeners.append(CurveListener(self._remote.context, self._remote.listener, self._on_frame))

    def send(self, endpoint: str, message: Any, work: Work | None = None) -> None:
        """Queue ``message`` for the process at ``endpoint``; never blocks.

        Args:
            work: the request that the message carries forward and the stage it is for, where it does: what
                :meth:`peer_is_down` and :meth:`forget` go by.

        Raises:
            CodecError: the message holds something that cannot be sent.
            TransportError: the peer has left :data:`~omni_core.control.peer.HIGH_WATER_MARK` messages unread.
        """
        made = frame(message, work)
        if threading.get_ident() == self._thread:
            self._send(endpoint, made)
        else:
            self._loop.call_soon_threadsafe(self._send_late, endpoint, made.own())

    def tell(self, endpoint: str, message: Any) -> None:
        """As :meth:`send`, for a message whose loss is logged and no error."""
        try:
            self.send(endpoint, message)
        except OmniError as error:
            logger.warning("a %s to %s was not sent: %s", type(message).__name__, endpoint, error)

    def _send(self, endpoint: str, made: Frame) -> None:
        if self._closed:
            return
        sender = self._senders.get(endpoint)
        if sender is None:
            sender = self._sender(endpoint)
            sender.connect()
        sender.send(made)
        if sender.peer.must_ask and not self._asking:
            self._asking = True
            for each in self._senders.values():
                each.peer.ask()
            self._ask_in_flight()

    def _send_late(self, endpoint: str, made: Frame) -> None:
        try:
            self._send(endpoint, made)
        except OmniError:
            logger.exception("a message to %s was lost", endpoint)

    def _sender(self, endpoint: str) -> Sender:
        """The sender to an endpoint, made if there is none."""
        sender = self._senders.get(endpoint)
        if sender is None:
            sender = self._senders[endpoint] = Sender(endpoint, self._loop, self._open_link)
        return sender

    def _open_link(self, sender: Sender) -> Link | None:
        """A connection to a peer, or ``None`` if it is not there."""
        endpoint, remote = sender.peer.endpoint, self._remote
        if remote is None or endpoint not in remote.routes:
            return UnixLink.open(endpoint, self._loop)
        from omni_core.control.curve import CurveLink

        def lost(reason: str) -> None:
            if sender.lose(link):
                remote.on_lost(endpoint, reason)

        link = CurveLink(remote.context, remote.routes[endpoint], lost)
        return link

    def is_behind(self, endpoint: str) -> bool:
        """Return True if so much waits for a peer that senders must await :meth:`room` before they send more of a request."""
        sender = self._senders.get(endpoint)
        return sender is not None and sender.peer.is_behind

    async def room(self, endpoint: str) -> None:
        """Wait until the peer at ``endpoint`` is no longer behind."""
        await in_task()
        if self.is_behind(endpoint):
            await self._senders[endpoint].room()

    # --- peers that die and come back ----------------------------------------------------------------------------------
    def peer_is_down(self, endpoint: str) -> list[Work]:
        """The process at ``endpoint`` has died: hold back what is for it.

        Returns the work of which something was written to that process; what waits is kept for its successor.
        """
        sender = self._senders.get(endpoint)
        return [] if sender is None else sender.down()

    def peer_is_up(self, endpoint: str) -> None:
        """A new process reads ``endpoint``: send it what waits."""
        sender = self._senders.get(endpoint)
        if sender is not None:
            sender.connect()

    def peer_has_failed(self, endpoint: str, error: OmniError) -> list[Work]:
        """Nothing will read ``endpoint`` any more: later messages to it raise ``error``. Returns the work that waited."""
        return self._sender(endpoint).fail(error)

    def drop(self, endpoint: str) -> None:
        """Forget a peer for good: its connection, and what waits for it."""
        sender = self._senders.pop(endpoint, None)
        if sender is not None:
            sender.down()

    def forget(self, request_id: str) -> None:
        """Drop what waits for any peer on behalf of a request that is over."""
        for sender in self._senders.values():
            sender.forget(request_id)

    def keep(self, in_flight: Collection[str]) -> None:
        """The answer to ``ask_in_flight``: what was sent of other requests before the question need not be remembered."""
        known = frozenset(in_flight)
        self._asking = False
        for sender in self._senders.values():
            sender.peer.keep(known)

    # --- reading -------------------------------------------------------------------------------------------------------
    def _on_frame(self, document: memoryview, raw: memoryview) -> None:
        try:
            message = decode(document, raw)
        except CodecError as error:
            logger.error("a control message was dropped: %s", error)
            return
        if self._closed:
            return
        try:
            self._on_message(message)
        except Exception:  # the frames behind it in the stream must still be handled
            logger.exception("a %s could not be handled", type(message).__name__)

    def close(self) -> None:
        """Close every socket. What could not be written yet is dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for sender in self._senders.values():
            sender.down()
        for listener in self._listeners:
            listener.close()
        if self._remote is not None:
            self._remote.context.close()
