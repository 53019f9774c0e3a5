"""A client's connection: uvicorn's protocol, which also ends connections that do not finish their headers, or send too many.

The head of an answer is written together with the first piece of its body: each write is a system call, and wakes the client.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from omni_serve.streams import ABORT, COMPLETE

logger = logging.getLogger(__name__)

HEADER_SECONDS = 15.0
"""The time that a client has to send the headers of a request."""

HEAD_BYTES = 64 * 1024
"""The longest head of a request: its URL and headers. One read of the socket may be added."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on the head of a request.

    Most heads come whole: a timer is set only where one does not.
    """

    _late: asyncio.TimerHandle | None = None
    _in_head = True
    _head = _trailers = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read; end the connection if the head goes on and is too long. What comes after it in the same piece is not counted."""
        self._head += len(data)
        super().data_received(data)
        if self._in_head:
            self._wait()
            if self._head > HEAD_BYTES:
                self._too_long()

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}
        self._in_head, self._head, self._trailers = True, 0, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, also one after the body."""
        super().on_header(name, value)
        if not self._in_head:
            self._trailers += len(name) + len(value)
            if self._trailers > HEAD_BYTES:
                self._too_long()

    def on_headers_complete(self) -> None:
        """End the head, and begin the answer."""
        self._in_head = False
        self._wait_no_more()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            cycle = self.cycle
            self.scope["extensions"][COMPLETE] = {"complete": lambda: not cycle.more_body}
            if self.scope["method"] != "HEAD":
                cycle.transport = JoinedHead(cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _too_long(self) -> None:
        logger.warning("a connection was cut: the head of its request is over %d KiB", HEAD_BYTES // 1024)
        self.transport.abort()

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class JoinedHead(asyncio.Transport):
    """The transport of one answer, which holds its head back until a part of the body is written, or the connection closed.

    ASGI allows that: an application that has sent the head only has sent nothing yet.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._transport = cycle, cycle.transport
        self._begun = False
        self._held = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, or hold the head."""
        if self._cycle.response_started and not self._begun:  # "100 Continue" comes before
            self._begun, self._held = True, bytes(data)
        elif self._held:
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Write what is held, and close."""
        if self._held:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or about to be."""
        return self._transport.is_closing()
