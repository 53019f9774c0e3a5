"""The web server: sockets that are opened before the pipeline starts, a bounded number of connections, a drain at SIGTERM."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn

from omni_core.api import ConfigError, watched
from omni_core.runtime_api import Sparing
from omni_serve.connections import Addresses, BoundedProtocol, Config
from omni_serve.incoming import HELD_BYTES, MESSAGE_BYTES, BoundedWebSocket
from omni_serve.limits import Admission
from omni_serve.room import Room
from omni_serve.sockets import END_SECONDS

logger = logging.getLogger(__name__)
logging.getLogger("uvicorn.error").addFilter(Sparing())  # it has a line for each request that is no HTTP

CONNECTIONS = 8192
"""Open connections; further ones get status 503."""

PING_SECONDS = 20.0
"""The time between two pings of a WebSocket, and the time in which the client must answer."""

VANISHED = {"TCP_USER_TIMEOUT": 60_000, "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options by which a client whose machine or network has vanished counts as gone after a minute, whether it is being sent something (the
first, in ms) or not: otherwise its request runs to its end for nobody, and its connection stays for a quarter of an hour.
"""

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class WebServer(uvicorn.Server):
    """uvicorn in an event loop of ours, which handles the signals."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections and end the application: also in haste, where uvicorn leaves that to the end of the event loop."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    def end(self) -> None:
        """Accept nothing more, finish what runs; at the second call, end at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


class Ending:
    """Ends servers in order: what runs comes to its end first, also on WebSockets, which uvicorn would cut at once.

    Args:
        say: tells whoever waits at a terminal what goes on.
    """

    def __init__(
        self,
        admission: Admission,
        servers: Sequence[WebServer],
        seconds: float,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._admission, self._servers, self._seconds, self._say = admission, servers, seconds, say
        self._draining: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        """Refuse new requests, and end the servers when the running ones have ended; at the second call, at once."""
        self._admission.draining = True
        held = self._admission.running + self._admission.waiting
        if self._draining is None:
            if held:
                what = f"{held} requests have" if held > 1 else "1 request has"
                self._say(f"Ending: {what} {self._seconds:g} s to finish. A second signal (Ctrl-C) ends at once.")
            self._draining = watched(self._drain(), "the end of the server", lambda error: self._cut())
            return
        if held:
            self._say(f"Ending at once: {held} requests are cut." if held > 1 else "Ending at once: 1 request is cut.")
        self._draining.cancel()
        self._cut()

    def _cut(self) -> None:
        for server in self._servers:
            server.should_exit = server.force_exit = True

    async def _drain(self) -> None:
        begun = asyncio.get_running_loop().time()
        has_ended = await self._admission.drain(self._seconds)
        await self._admission.end_sessions(END_SECONDS)
        if not has_ended:
            self._cut()  # what still runs gets an error; uvicorn would cancel it without one, with a traceback
            return
        left = self._seconds - (asyncio.get_running_loop().time() - begun)
        for server in self._servers:
            server.config.timeout_graceful_shutdown = max(1, round(left))
            server.end()


def web_server(
    app: Any,
    *,
    drain_seconds: float,
    cert: str | None = None,
    key: str | None = None,
    connections_per_address: int = CONNECTIONS,
) -> WebServer:
    """Return a server for an application."""
    config = Config(
        app,
        http=BoundedProtocol,
        ws=partial(BoundedWebSocket, room=Room(HELD_BYTES)),  # type: ignore[arg-type]  # it is only called
        ws_max_size=MESSAGE_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        ws_per_message_deflate=False,  # half a second of speech would shrink by a quarter, for 0.75 ms of the event loop
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
    config.addresses = Addresses(connections_per_address)
    config.load()  # imports the protocols now, before freeze_start()
    return WebServer(config)


def return_memory() -> None:
    """Let the C library give large blocks back to the system when they are freed, as it does at first.

    Once it has seen blocks of 32 MiB freed, it keeps up to 64 MiB of them in each thread's heap (mallopt(3), M_MMAP_THRESHOLD).
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, 256 * 1024)
        set_option(_M_ARENA_MAX, 2)


_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


def freeze_start() -> None:
    """Leave what the start of a process has made out of garbage collections: of its objects none becomes garbage.

    A full collection looks at all of them, tens of milliseconds in which nothing is sent, and under load there is one every second or two.
    """
    gc.collect()
    gc.freeze()


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
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections have the options of their listener
        for name, value in VANISHED.items():
            if option := getattr(socket, name, None):
                listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.bind((host, int(port)))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{address}: cannot listen: {error.strerror or error}{_ADVICE.get(error.errno or 0, '')}"
        ) from error
    return listener


_ADVICE = {
    errno.EADDRINUSE: "; another program listens there (`ss -ltnp` shows which): end it, or choose another port (0: any that is free)",
    errno.EADDRNOTAVAIL: "; it must be an address of this machine (`ip address` lists them), or 0.0.0.0 for all",
    errno.EACCES: "; ports below 1024 are root's: choose a higher one",
}
"""Advice on an address that cannot be used, by the error's number."""


def check_certificate(cert: str, key: str) -> None:
    """Read a certificate and its key, as the server will.

    Raises:
        ConfigError: they are not what they should be, or do not belong together.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:  # SSLError is one
        why = error.strerror or str(error)
        raise ConfigError(
            f"--tls-cert {cert}, --tls-key {key}: cannot be used: {why}; they must be the certificate and its private key, without a "
            "passphrase, as PEM"
        ) from error


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
