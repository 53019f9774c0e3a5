"""A client's connection: uvicorn's protocol, with limits on heads of requests and on connections of one address.

A request that is not read to its end (its head is wrong, its body is refused) is the last of its connection.

The head of an answer is written together with the first piece of its body: each write is a system call, and wakes the client.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_network

import uvicorn
from attrs import define, field
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from omni_serve.errors import ApiError
from omni_serve.streams import ABORT, COMPLETE

logger = logging.getLogger(__name__)

HEADER_SECONDS = 15.0
"""The time that a client has to send the headers of a request."""

URL_BYTES = 16 * 1024
"""The longest target of a request."""

HEAD_BYTES = 64 * 1024
"""The longest head of a request: its URL and headers."""

LINGER_SECONDS = 2.0
"""The time in which a client must take an answer after which its connection ends."""

_HOST = re.compile(rb"(\[[\da-fA-F:.]+\]|[^\s\[\]:/?#@,\\]+)(:\d*)?")


@define(eq=False)
class Addresses:
    """Counts the open connections of each client's address; those of Unix sockets have none."""

    most: int
    _open: Counter[str] = field(factory=Counter)
    _told: set[str] = field(factory=set)

    def enter(self, client: tuple[str, int] | None) -> bool:
        """Count a connection; ``False``: its address has as many as it may."""
        if client is None:
            return True
        address = _network(client[0])
        if self._open[address] >= self.most:
            if address not in self._told:
                self._told.add(address)
                logger.warning("%s has %d connections, connections_per_address: more are refused", address, self.most)
            return False
        self._open[address] += 1
        return True

    def leave(self, client: tuple[str, int] | None) -> None:
        """Count a connection no more."""
        if client is not None:
            address = _network(client[0])
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
                self._told.discard(address)


def _network(host: str) -> str:
    """Return what one client has: an address of IPv4, or a network of 2**64 addresses of IPv6."""
    return str(ip_network((host.partition("%")[0], 64), strict=False)) if ":" in host else host


class Config(uvicorn.Config):
    """uvicorn's configuration, with the connections that its protocols count."""

    addresses: Addresses


class BoundedSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol of WebSockets, which are counted as connections of their address too."""

    config: Config

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        self.config.addresses.leave(self.client)
        super().connection_lost(exc)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on the head of a request.

    Most heads come whole: a timer is set only where one does not.
    """

    config: Config
    _late: asyncio.TimerHandle | None = None
    _in_head = True
    _head = _fields = 0
    _refusal: ApiError | None = None
    _counted = _upgraded = _lingers = _keeps = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._counted = self.config.addresses.enter(self.client)
        if self._counted:
            self._wait()
        else:
            self._refuse(
                ApiError(503, "This address has as many connections as it may.", code="overloaded", retry_after=5)
            )

    def data_received(self, data: bytes) -> None:
        """Read; refuse the request if its head goes on and is too long. What comes after it in the same piece is not counted."""
        if self._lingers:
            return
        self._head += len(data)
        super().data_received(data)
        if self._in_head and not self._lingers:
            self._wait()
            if self._head > HEAD_BYTES:
                self._refuse(_headers_too_long())

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to the protocol of WebSockets, which ends its count."""
        self._upgraded = True
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}
        self._in_head, self._head, self._fields = True, 0, 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        super().on_url(url)
        if len(self.url) > URL_BYTES:
            message = f"The target of the request is over {URL_BYTES // 1024} KiB."
            raise self._refused(ApiError(414, message, code="url_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, also one after the body."""
        super().on_header(name, value)
        self._fields += len(name) + len(value) + len(b": \r\n")
        if self._fields > HEAD_BYTES:
            raise self._refused(_headers_too_long())

    def on_headers_complete(self) -> None:
        """End the head, and begin the answer."""
        self._check_version_and_host()
        self._in_head, self._fields = False, 0
        self._wait_no_more()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            cycle = self.cycle
            self._keeps, cycle.keep_alive = cycle.keep_alive, False  # until the body is whole
            self.scope["extensions"][COMPLETE] = {"complete": lambda: not cycle.more_body}
            if self.scope["method"] != "HEAD":
                cycle.transport = JoinedHead(cycle, self._linger)

    def on_message_complete(self) -> None:
        """End the body: further requests may come."""
        if self.cycle is not None and self.cycle.more_body:
            self.cycle.keep_alive = self._keeps
        super().on_message_complete()

    def shutdown(self) -> None:
        """Let no further request come."""
        self._keeps = False
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more, and count it no more."""
        self._wait_no_more()
        if self._counted and not self._upgraded:
            self.config.addresses.leave(self.client)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, or whose head was refused."""
        self._refuse(self._refusal or ApiError(400, "The request is not valid HTTP.", code="invalid_http"))

    def _check_version_and_host(self) -> None:
        """Refuse what RFC 9112 (3.2) says a server must refuse."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise self._refused(ApiError(505, "This server speaks HTTP/1.0 and HTTP/1.1.", code="invalid_http"))
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (version == "1.1" and not hosts) or not all(map(_HOST.fullmatch, hosts)):
            message = "A request must have one Host header with the name of the server."
            raise self._refused(ApiError(400, message, code="invalid_host"))

    def _refused(self, error: ApiError) -> Exception:
        """Return what ends the parser, after which ``error`` is the answer."""
        self._refusal = error
        return ValueError(error.message)

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error and end the connection; what cannot be answered in its place is cut."""
        self._wait_no_more()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._in_head or self.pipeline or cycle.response_started:
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        answer = error.response()
        fields = [*answer.raw_headers, (b"connection", b"close")]
        head = b"".join(b"%b: %b\r\n" % each for each in fields)
        self.transport.write(b"".join((STATUS_LINE[error.status], head, b"\r\n", answer.body)))
        self._linger()

    def _linger(self) -> None:
        """End the connection, after the client could read the answer: closing with its data unread would reset it at once."""
        if self._lingers or self.transport.is_closing():
            return
        self._lingers = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._wait_no_more()
        self._late = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _headers_too_long() -> ApiError:
    message = f"The headers of the request are over {HEAD_BYTES // 1024} KiB."
    return ApiError(431, message, code="headers_too_long")


class JoinedHead(asyncio.Transport):
    """The transport of one answer, which holds its head back until a part of the body is written, or the connection closed.

    ASGI allows that: an application that has sent the head only has sent nothing yet.

    Args:
        linger: closes the connection of a request whose body was not read to its end.
    """

    def __init__(self, cycle: RequestResponseCycle, linger: Callable[[], None]) -> None:
        self._cycle, self._transport, self._linger = cycle, cycle.transport, linger
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
        if self._cycle.more_body and not self._cycle.disconnected:
            self._linger()
        else:
            self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or about to be."""
        return self._transport.is_closing()
