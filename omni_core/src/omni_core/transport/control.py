"""The control plane: small messages from any process of a pipeline to any other, over Unix-domain stream sockets.

One connection per sender and receiver, made at the first message, so messages between two processes keep their order. What
was sent lies in the kernel and arrives even if the sender dies. A message for a peer that does not read, or is not up, waits
here, bounded. See ``docs/decisions/0004-direct-sockets.md`` for why there is no broker and no I/O thread in between. Peers on
other hosts are reached over TCP (:mod:`omni_core.transport.curve`); nothing else is different for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Protocol

from attrs import field, frozen

from omni_core.errors import CodecError, OmniError, TransportError
from omni_core.protocol.codec import decode, encode
from omni_core.transport.lanes import Later

logger = logging.getLogger(__name__)

HIGH_WATER_MARK = 20_000
"""Messages that may wait for one peer. Admission bounds what is in flight; a peer this far behind is not reading."""

BACKLOG_MESSAGES, BACKLOG_BYTES = 1_000, 4 * 2**20
"""What may wait for one peer before its senders are asked to wait (see :meth:`ControlPlane.room`)."""

REMEMBERED_REQUESTS = 20_000
"""How many requests a sender remembers to have written to one peer."""

Work = tuple[str, str]
"""A request and the stage that it is sent to."""

_LENGTH_BYTES = 4
_LARGEST_MESSAGE = 2**32 - 1
_READ_BYTES = 256 * 1024
_WRITE_AT_ONCE = 64


class Link(Protocol):
    """The sending end of one connection."""

    def write(self, data: memoryview) -> int:
        """How many bytes of ``data`` were taken. Raises BlockingIOError: none now. OSError: none any more."""

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` whenever something can be written; ``None``: no more."""

    def close(self) -> None: ...


@frozen
class Abroad:
    """How a process reaches, and is reached from, other hosts.

    Attributes:
        context: keys and sockets, a :class:`omni_core.transport.curve.CurveContext`. Closed by the control plane.
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
        self._curve_listener: Any = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._peers: dict[str, _Peer] = {}
        self._incoming: set[_Incoming] = set()
        self._closed = False
        self._endpoint = endpoint
        self._listener: socket.socket | None = None

    def listen(self) -> None:
        """Begin to read the endpoint.

        Raises:
            TransportError: its socket cannot be made.
        """
        self._listener = _listen(_path(self._endpoint))
        self._loop.add_reader(self._listener.fileno(), self._accept)
        if self._abroad is not None and self._abroad.listener is not None:
            from omni_core.transport.curve import CurveListener

            self._curve_listener = CurveListener(self._abroad.context, self._abroad.listener, self._on_document)

    def send(self, endpoint: str, message: Any, work: Work | None = None) -> None:
        """Queue ``message`` for the process at ``endpoint``; never blocks.

        Args:
            work: the request that the message carries forward and the stage it is for, where it does: what
                :meth:`peer_is_down` and :meth:`forget` go by.

        Raises:
            CodecError: the message holds something that cannot be sent.
            TransportError: the peer has left :data:`HIGH_WATER_MARK` messages unread.
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

    def _make_peer(self, endpoint: str) -> _Peer:
        return _Peer(endpoint, self._loop, self._open_link)

    def _open_link(self, peer: _Peer) -> Link | None:
        """A connection to a peer, or ``None`` if it is not there."""
        abroad = self._abroad
        if abroad is None or peer.endpoint not in abroad.routes:
            return _UnixLink.open(_path(peer.endpoint), self._loop)
        from omni_core.transport.curve import CurveLink

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

    def room(self, endpoint: str) -> Later | None:
        """What to await before sending more of the same request to ``endpoint``; ``None`` while the peer keeps up."""
        peer = self._peers.get(endpoint)
        return None if peer is None or not peer.is_behind else peer.room

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
    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._listener.accept()
            self._incoming.add(_Incoming(connection, self._loop, self._on_document, self._incoming.discard))

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
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
        for peer in self._peers.values():
            peer.disconnect()
        for incoming in list(self._incoming):
            incoming.close()
        if self._curve_listener is not None:
            self._curve_listener.close()
        if self._abroad is not None:
            self._abroad.context.close()


class _UnixLink:
    """A :class:`Link` over a Unix-domain socket."""

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = connection
        self._loop = loop
        self.write = connection.send
        connection.setblocking(False)

    @classmethod
    def open(cls, path: str, loop: asyncio.AbstractEventLoop) -> _UnixLink | None:
        """Connect, if somebody listens there."""
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


class _Peer:
    """What is sent to one peer: written to the link, or waiting."""

    def __init__(
        self, endpoint: str, loop: asyncio.AbstractEventLoop, open_link: Callable[[_Peer], Link | None]
    ) -> None:
        self.endpoint = endpoint
        self._loop = loop
        self._open_link = open_link
        self._link: Link | None = None
        self._waiting: deque[tuple[memoryview, Work | None]] = deque()
        self._waiting_bytes = 0
        self._senders: list[asyncio.Future[None]] = []
        self._begun = 0  # bytes of the first waiting message that are written already
        self._reached: OrderedDict[Work, None] = OrderedDict()
        self._failure: OmniError | None = None

    def connect(self) -> None:
        """Connect and write what waits. A peer that is not there yet is connected to when it is said to be up."""
        if self._link is not None:
            return
        self._link = self._open_link(self)
        if self._link is not None and self._waiting:
            self._link.when_writable(self._flush)

    def lose(self, link: Link) -> bool:
        """A link has ended by itself. Whether it was the one in use."""
        if link is not self._link:
            return False
        self._drop_link()
        return True

    def send(self, document: bytes, work: Work | None) -> None:
        if self._failure is not None:
            raise self._failure
        if len(document) > _LARGEST_MESSAGE:
            raise TransportError(f"a control message of {len(document)} bytes is too large; at most {_LARGEST_MESSAGE}")
        if len(self._waiting) >= HIGH_WATER_MARK:
            raise TransportError(f"{self.endpoint} has left {HIGH_WATER_MARK} messages unread; is its process stopped?")
        frame = len(document).to_bytes(_LENGTH_BYTES, "little") + document
        if self._link is None or self._waiting:
            self._keep(frame, work)
            return
        try:
            written = self._link.write(memoryview(frame))
        except BlockingIOError:
            written = 0
        except OSError:
            # The process has died, which its parent will tell. This message is the successor's.
            self._drop_link()
            self._keep(frame, work)
            return
        self._note(work)
        if written < len(frame):
            self._keep(frame, work)
            self._begun = written
            self._link.when_writable(self._flush)

    def _keep(self, frame: bytes, work: Work | None) -> None:
        self._waiting.append((memoryview(frame), work))
        self._waiting_bytes += len(frame)

    @property
    def is_behind(self) -> bool:
        return len(self._waiting) > BACKLOG_MESSAGES or self._waiting_bytes > BACKLOG_BYTES

    async def room(self) -> None:
        """Return when the peer is no longer behind."""
        while self.is_behind:
            sender = self._loop.create_future()
            self._senders.append(sender)
            try:
                await sender
            finally:
                if sender in self._senders:
                    self._senders.remove(sender)

    def _let_send(self) -> None:
        """Something that waited is gone."""
        if self._senders and not self.is_behind:
            senders, self._senders = self._senders, []
            for sender in senders:
                if not sender.done():
                    sender.set_result(None)

    def _flush(self) -> None:
        assert self._link is not None
        for _ in range(_WRITE_AT_ONCE):
            if not self._waiting:
                self._link.when_writable(None)
                return
            frame, work = self._waiting[0]
            self._note(work)
            try:
                self._begun += self._link.write(frame[self._begun :])
            except BlockingIOError:
                return
            except OSError:
                self._drop_link()
                return
            if self._begun < len(frame):
                return
            self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._begun = 0
            self._let_send()

    def _note(self, work: Work | None) -> None:
        if work is not None and work not in self._reached:
            self._reached[work] = None
            if len(self._reached) > REMEMBERED_REQUESTS:
                self._reached.popitem(last=False)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._begun = 0  # the successor gets the whole message

    def fail(self, error: OmniError) -> list[Work]:
        self._failure = error
        self._drop_link()
        waiting = [work for _, work in self._waiting if work is not None]
        self._waiting.clear()
        self._waiting_bytes = 0
        self._let_send()
        return waiting

    def disconnect(self) -> list[Work]:
        self._drop_link()
        reached, self._reached = list(self._reached), OrderedDict()
        return reached

    def forget(self, request_id: str) -> None:
        if self._waiting:
            first = [self._waiting[0]] if self._begun else []  # half of it is written: it has to be finished
            kept = [each for each in list(self._waiting)[len(first) :] if each[1] is None or each[1][0] != request_id]
            self._waiting = deque([*first, *kept])
            self._waiting_bytes = sum(len(frame) for frame, _ in self._waiting)
            self._let_send()


class _Incoming:
    """The receiving end of one connection: cuts the stream into documents."""

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
        while self._filled - start >= _LENGTH_BYTES:
            end = start + _LENGTH_BYTES + int.from_bytes(view[start : start + _LENGTH_BYTES], "little")
            if end > self._filled:
                return start, end - start
            self._on_document(view[start + _LENGTH_BYTES : end])
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
