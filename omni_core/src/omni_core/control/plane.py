"""The control plane: small messages from any process of a pipeline to any other, over Unix-domain stream sockets.

One connection per sender and receiver, made at the first message, so messages between two processes keep their order. What
was sent lies in the kernel and arrives even if the sender dies. A message for a peer that does not read, or is not up, waits
in its :class:`~omni_core.control.peer.Peer`. ``docs/decisions/0007-control-plane.md`` says why there is no broker and no I/O
thread. Peers have names; a name's address is a Unix-domain socket on the same machine, and whatever the run's
:class:`~omni_core.control.network.Network` understands on another. Nothing else is different for them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from omni_core.control.faults import Sparing
from omni_core.control.framing import Frame, Work, frame
from omni_core.control.lanes import in_task
from omni_core.control.network import Link, Network
from omni_core.control.sender import Sender
from omni_core.control.unix import UnixLink, UnixListener
from omni_core.errors import CodecError, OmniError, TransportError, is_interrupt, traceback_of
from omni_core.protocol.codec import decode

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())  # what a peer sends can be at fault a thousand times a second


class ControlPlane:
    """One process's end of the control plane, bound to its event loop. :meth:`send` may be called from any thread.

    It sends from the beginning, and reads from :meth:`listen` on: until then connections are refused, so that no work reaches a
    process that is not ready for it.

    Args:
        endpoint: the name of this process, or its address.
        on_message: called on the event loop with every decoded message.
        addresses: the addresses of endpoints, this one's among them; a Unix-domain one (``ipc://PATH``) is in a private folder (0700).
            An endpoint of the form ``ipc://PATH`` is its own address. Others are told later (:meth:`peer_is_up`).
        network: the way to other machines, if there are any; closed with this object.
        on_lost: called with endpoint and reason when a connection to another machine has ended, or cannot be made.
        on_nonsense: called with pid and reason when a process of this machine has sent what is no message; its connection is closed.
        ask_in_flight: called when many requests have been sent on: find out which are in flight, then call :meth:`keep`.
    """

    def __init__(
        self,
        endpoint: str,
        on_message: Callable[[Any], None],
        addresses: Mapping[str, str] | None = None,
        network: Network | None = None,
        on_lost: Callable[[str, str], None] = lambda endpoint, reason: None,
        ask_in_flight: Callable[[], None] = lambda: None,
        on_nonsense: Callable[[int, str], None] | None = None,
    ) -> None:
        self._on_message = on_message
        self._addresses = dict(addresses or {})
        self._network = network
        self._on_lost = on_lost
        self._ask_in_flight = ask_in_flight
        self._on_nonsense = on_nonsense or (lambda pid, reason: logger.error("process %d has sent %s", pid, reason))
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._senders: dict[str, Sender] = {}
        self._asking = False
        self._closed = False
        self._endpoint = endpoint
        self._listener: UnixListener | None = None

    def listen(self) -> None:
        """Begin to read the endpoint.

        Raises:
            TransportError: its socket cannot be made.
        """
        if self.is_near(self._endpoint):  # else only the network reaches it
            self._listener = UnixListener(self._address(self._endpoint), self._loop, self._on_frame, self._on_nonsense)
        if self._network is not None:
            self._network.listen(self._on_frame)

    def renew(self) -> None:
        """Listen anew if the file of the endpoint's socket is gone.

        Raises:
            TransportError: its socket cannot be made.
        """
        if self._listener is not None:
            self._listener.renew()

    def is_near(self, endpoint: str) -> bool:
        """Return whether a process is known to be on this machine."""
        return self._address(endpoint).startswith("ipc://")

    def _address(self, endpoint: str) -> str:
        return self._addresses.get(endpoint, endpoint)

    def send(self, endpoint: str, message: Any, work: Work | None = None) -> None:
        """Queue ``message`` for the process at ``endpoint``; never blocks.

        Args:
            work: the request that the message carries forward and the stage it is for, where it does: what
                :meth:`peer_is_down` and :meth:`forget` go by.

        Raises:
            CodecError: the message holds something that cannot be sent.
            TransportError: the peer has left :data:`~omni_core.control.back_pressure.HIGH_WATER_MARK` messages unread.
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
        endpoint = sender.peer.endpoint
        address = self._address(endpoint)
        if address.startswith("ipc://"):
            return UnixLink.open(address, self._loop)
        if self._network is None or address == endpoint:
            return None

        def lost(reason: str) -> None:
            if sender.lose(link):
                self._on_lost(endpoint, reason)

        link = self._network.open(address, lost)
        return link

    def is_behind(self, endpoint: str) -> bool:
        """Back-pressure: return True if senders must await :meth:`room` before they send this peer more of a request."""
        sender = self._senders.get(endpoint)
        return sender is not None and sender.peer.is_behind

    async def room(self, endpoint: str) -> None:
        """Wait until the peer at ``endpoint`` is no longer behind."""
        await in_task()
        if self.is_behind(endpoint):
            await self._senders[endpoint].room()

    def peer_is_down(self, endpoint: str) -> list[Work]:
        """The process at ``endpoint`` has died: hold back what is for it.

        Returns the work of which something was written to that process; what waits is kept for its successor.
        """
        sender = self._senders.get(endpoint)
        return [] if sender is None else sender.down()

    def peer_is_up(self, endpoint: str, address: str = "") -> None:
        """A new process reads ``endpoint``: send it what waits. ``address``: where it is reached from now on."""
        sender = self._senders.get(endpoint)
        if address and address != self._address(endpoint):
            self._addresses[endpoint] = address
            if sender is not None:
                sender.disconnect()
        if sender is not None:
            sender.connect()

    def peer_has_failed(self, endpoint: str, error: OmniError) -> list[Work]:
        """Nothing reads ``endpoint``: messages to it raise ``error`` until it is up again. Returns the work that waited."""
        return self._sender(endpoint).fail(error)

    def drop(self, endpoint: str) -> None:
        """Forget a peer for good: its connection, and what waits for it."""
        self._addresses.pop(endpoint, None)
        sender = self._senders.pop(endpoint, None)
        if sender is not None:
            sender.fail(TransportError(f"the process at {endpoint} has ended"))

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
        except BaseException as error:  # the frames behind it in the stream must still be handled
            if is_interrupt(error):
                raise
            logger.error("a %s could not be handled\n%s", type(message).__name__, traceback_of(error))

    def close(self) -> None:
        """Close every socket. What could not be written yet is dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for sender in self._senders.values():
            sender.down()
        if self._listener is not None:
            self._listener.close()
        if self._network is not None:
            self._network.close()
