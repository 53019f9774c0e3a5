"""The web server: sockets that are opened before the pipeline starts, connections that are bounded, a drain at SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omni_core.errors import ConfigError
from omni_serve.limits import Admission
from omni_serve.streams import ABORT

logger = logging.getLogger(__name__)

HEADER_SECONDS = 15.0
"""The time that a client has to send the headers of a request."""

HEAD_BYTES = 64 * 1024
"""The longest head of a request: its URL and headers. One read of the socket may be added."""

CONNECTIONS = 8192
"""Open connections; further ones get status 503."""

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which also ends connections that do not finish their headers, or send too many."""

    _late: asyncio.TimerHandle | None = None
    _head = _trailers = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read; end the connection if the head goes on and is too long. What comes after it in the same piece is not counted."""
        self._head += len(data)
        super().data_received(data)
        if self._late is not None and self._head > HEAD_BYTES:
            self._too_long()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, also one after the body."""
        super().on_header(name, value)
        if self._late is None:
            self._trailers += len(name) + len(value)
            if self._trailers > HEAD_BYTES:
                self._too_long()

    def on_message_begin(self) -> None:
        """Begin to wait for the headers of a further request."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}
        self._wait()

    def on_headers_complete(self) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _too_long(self) -> None:
        logger.warning("a connection was cut: the head of its request is over %d KiB", HEAD_BYTES // 1024)
        self.transport.abort()

    def _wait(self) -> None:
        self._wait_no_more()
        self._head = self._trailers = 0
        self._late = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class WebServer(uvicorn.Server):
    """uvicorn in an event loop of ours, which handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    def end(self) -> None:
        """Accept nothing more, finish what runs; at the second call, end at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


class Ending:
    """Ends servers in order: what runs comes to its end first, also on WebSockets, which uvicorn would cut at once."""

    def __init__(self, admission: Admission, servers: Sequence[WebServer], seconds: float) -> None:
        self._admission, self._servers, self._seconds = admission, servers, seconds
        self._draining: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        """Refuse new requests, and end the servers when the running ones have ended; at the second call, at once."""
        self._admission.draining = True
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())
            return
        self._draining.cancel()
        for server in self._servers:
            server.should_exit = server.force_exit = True

    async def _drain(self) -> None:
        begun = asyncio.get_running_loop().time()
        await self._admission.drain(self._seconds)
        left = self._seconds - (asyncio.get_running_loop().time() - begun)
        for server in self._servers:
            server.config.timeout_graceful_shutdown = max(1, round(left))
            server.end()


def web_server(app: Any, *, drain_seconds: float, cert: str | None = None, key: str | None = None) -> WebServer:
    """Return a server for an application."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="websockets-sansio",
        ws_max_size=1 << 20,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(drain_seconds)),
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    return WebServer(config)


def open_socket(address: str) -> socket.socket:
    """Return a listening socket: ``HOST:PORT``, or the path of a Unix socket, which only its owner may use.

    Raises:
        ConfigError: the address is malformed, in use or not allowed.
    """
    if "/" in address:
        return _open_unix(Path(address))
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address}: must be HOST:PORT or the path of a socket")
    host = host.strip("[]") or "127.0.0.1"
    # With its protocol named: asyncio sends small pieces at once (TCP_NODELAY) only on such sockets, and on those that they accept.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{address}: cannot listen: {error.strerror or error}") from error
    return listener


def _open_unix(path: Path) -> socket.socket:
    if path.is_socket():
        probe = socket.socket(socket.AF_UNIX)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()  # nobody listens: left behind by a server that was killed
        else:
            raise ConfigError(f"{path}: another server listens there")
        finally:
            probe.close()
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{path}: cannot listen: {error.strerror}") from error
    finally:
        os.umask(mask)
    return listener


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def signals(end: Callable[[], object]) -> Iterator[None]:
    """Call ``end`` at SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, end)
    try:
        yield
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
