"""The control plane between hosts: ZMQ over TCP, encrypted and authenticated with CurveZMQ keys (RFC 26).

All processes of a run own one key pair, which its user brings to the hosts in a file. The handshake refuses every other key,
in both directions, and nothing is ever sent in the clear. Needs ``pyzmq`` (``pip install omni-core[hosts]``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from omni_core.control.framing import parse
from omni_core.errors import ConfigError

NOT_INSTALLED = "control sockets between hosts need pyzmq; pip install omni-core[hosts]"

HEARTBEAT_MS, SILENCE_MS = 1000, 3000
"""The heartbeat interval of connections between hosts, and the silence after which a connection counts as lost."""

_HANDSHAKE_MS = 5000
_IN_SOCKET_MESSAGES = 64
"""Messages that ZMQ itself may hold per connection: few, because what waits is bounded and counted in ``Peer``."""


@frozen
class CurveKeys:
    """The key pair of a run, as 40 characters of Z85 each."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> CurveKeys:
        zmq = import_zmq()
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def read(cls, path: str | Path) -> CurveKeys:
        """The keys of a file that :meth:`write` made.

        Raises:
            ConfigError: it cannot be read, others may read it, or it holds no keys.
        """
        try:
            lines = Path(path).read_text().split()
            mode = os.stat(path).st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the key file {path} cannot be read ({error}); make one with: omni hosts key {path}"
            ) from error
        if mode & 0o077:
            raise ConfigError(f"the key file {path} can be read by others (mode {mode & 0o777:o}); chmod 600 {path}")
        if len(lines) != 2 or any(len(line) != 40 for line in lines):
            raise ConfigError(f"the key file {path} holds no key pair; make one with: omni hosts key {path}")
        return cls(*lines)

    def write(self, path: str | Path) -> None:
        """Write the keys to a new file that only its owner can read. Raises FileExistsError."""
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{self.public}\n{self.secret}\n")


def import_zmq() -> Any:
    """``zmq``. Raises ConfigError where it is not installed."""
    try:
        import zmq
        import zmq.asyncio
        import zmq.utils.z85
    except ImportError as error:
        raise ConfigError(NOT_INSTALLED) from error
    return zmq


def open_listener(host: str, port: int = 0) -> socket.socket:
    """A listening TCP socket on one interface, for :class:`CurveListener`, here or in a child process.

    Raises:
        ConfigError: this machine has no such address, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{host} is no address of this machine: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"tcp://{host}:{port} cannot be listened on: {error}") from error
    return listener


class CurveContext:
    """The ZMQ context of one process: an I/O thread, and the authenticator that admits peers with the run's key."""

    def __init__(self, keys: CurveKeys) -> None:
        self.keys = keys
        self.zmq = import_zmq()
        self._context = self.zmq.asyncio.Context()
        self._questions = self._context.socket(self.zmq.REP)
        self._questions.linger = 0
        self._questions.bind("inproc://zeromq.zap.01")
        self._authenticating = asyncio.ensure_future(self._authenticate())

    async def _authenticate(self) -> None:
        """Answer ZMQ's question whether the owner of a key may connect (RFC 27, ZAP)."""
        mine = self.zmq.utils.z85.decode(self.keys.public)
        while True:
            version, number, _, _, _, mechanism, *credentials = await self._questions.recv_multipart()
            known = mechanism == b"CURVE" and credentials == [mine]
            verdict = (b"200", b"OK") if known else (b"400", b"this key is not the run's")
            await self._questions.send_multipart([version, number, *verdict, b"", b""])

    def socket(self, kind: int, socket_class: Any = None) -> Any:
        """A socket (by default of ``zmq.asyncio``) that heartbeats, and never holds back the end of the process."""
        made = self._context.socket(kind, socket_class)
        made.linger = 0
        made.ipv6 = True
        made.heartbeat_ivl, made.heartbeat_timeout = HEARTBEAT_MS, SILENCE_MS
        made.handshake_ivl = _HANDSHAKE_MS
        made.sndhwm = made.rcvhwm = _IN_SOCKET_MESSAGES
        made.curve_publickey = self.keys.public.encode()
        made.curve_secretkey = self.keys.secret.encode()
        return made

    def close(self) -> None:
        """End the I/O thread. Every socket must be closed before."""
        self._authenticating.cancel()
        self._questions.close()
        self._context.term()


class CurveListener:
    """The receiving end: every frame of every peer that owns the keys.

    Args:
        listener: a listening TCP socket, which stays its owner's.
    """

    def __init__(
        self, context: CurveContext, listener: socket.socket, on_frame: Callable[[memoryview, memoryview], None]
    ) -> None:
        self._on_frame = on_frame
        self._socket = context.socket(context.zmq.PULL)
        self._socket.curve_server = True
        self._socket.use_fd = os.dup(listener.fileno())
        host, port = listener.getsockname()[:2]
        self._socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            frame = await self._socket.recv(copy=False)
            self._on_frame(*parse(memoryview(frame.buffer)))

    def close(self) -> None:
        self._reading.cancel()
        self._socket.close()


class CurveLink:
    """The sending end of one connection: takes whole frames, as long as there is a connection that takes them.

    Args:
        on_lost: called once, with the reason, when the connection has ended or cannot be made.
    """

    def __init__(self, context: CurveContext, address: str, on_lost: Callable[[str], None]) -> None:
        zmq = self._zmq = context.zmq
        self._address = address
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._callback: Callable[[], None] | None = None
        self._socket = context.socket(zmq.PUSH, zmq.Socket)
        self._socket.curve_serverkey = context.keys.public.encode()
        self._socket.immediate = True
        self._socket.reconnect_ivl = -1  # the control plane connects anew when a peer is back
        self._monitor = self._socket.get_monitor_socket()
        self._watching = asyncio.ensure_future(self._watch(self._monitor))
        self._socket.connect(address)
        self._loop.add_reader(self._socket.fd, self._look)

    def write(self, parts: Sequence[memoryview]) -> int:
        """Send a whole frame. Raises BlockingIOError: not now."""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            self._socket.send(data, self._zmq.NOBLOCK)
        except self._zmq.Again:
            raise BlockingIOError from None
        except self._zmq.ZMQError as error:
            raise OSError(str(error)) from error
        return len(data)

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` whenever a frame can be written; ``None``: no more."""
        self._callback = callback
        if callback is not None:
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Call back if a frame can be written. ZMQ's descriptor is edge-triggered and shows no change that a call of ours made, so
        the socket's state is read.
        """
        if self._callback is None or self._socket.closed:
            return
        if self._socket.events & self._zmq.POLLOUT:
            self._callback()
            self._loop.call_soon(self._look)

    async def _watch(self, monitor: Any) -> None:
        """Wait for the end of the connection."""
        from zmq.utils.monitor import recv_monitor_message

        zmq = self._zmq
        ends = {
            zmq.EVENT_CLOSED: "no process answers there",
            zmq.EVENT_CONNECT_RETRIED: "no process answers there",
            zmq.EVENT_DISCONNECTED: "the connection has ended",
            zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it refuses our key",
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the handshake failed; do both sides have the same key file?",
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed; do both sides have the same key file?",
        }
        while (event := (await recv_monitor_message(monitor))["event"]) not in ends:
            if event == zmq.EVENT_MONITOR_STOPPED:
                return
        self._on_lost(f"{self._address}: {ends[event]}")

    def close(self) -> None:
        if self._socket.closed:
            return
        self._callback = None
        self._loop.remove_reader(self._socket.fd)
        self._watching.cancel()
        with contextlib.suppress(self._zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
