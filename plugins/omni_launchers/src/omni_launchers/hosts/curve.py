"""The control plane between hosts: ZMQ over TCP, encrypted and authenticated with CurveZMQ keys (RFC 26).

All processes of a run own one key pair, which its user brings to the hosts in a file. The handshake refuses every other key,
in both directions, and nothing is ever sent in the clear.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
import zmq.utils.z85
from attrs import field, frozen
from zmq.utils.monitor import recv_monitor_message

from omni_core.api import ConfigError, kept_up, watched
from omni_core.runtime_api import CodecError, Network, NetworkSpec, OnFrame, Sparing, join_address, parse_frame

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

SILENCE_SECONDS = 3.0
"""The silence after which a connection between hosts counts as lost, unless its run has another (``launcher.settings.silence``)."""

PIECE_BYTES = 64 * 1024
"""The most bytes in one part of a message. Every part that arrives shows that the other side is there, however slow the network is."""

LONGEST_SILENCE_SECONDS = 600.0
"""The most that a run may set it to."""

_ENVELOPE_BYTES = 1024
"""The most that encryption and authentication add to a piece, and a command of the handshake has."""

_HEARTBEAT_MS = 1000
_CONNECT_MS, _HANDSHAKE_MS = 10_000, 5000
_IN_SOCKET_MESSAGES = 64
"""Messages that ZMQ itself may hold per connection: few, because what waits is bounded and counted in ``Peer``."""


@frozen
class CurveKeys:
    """The key pair of a run, as 40 characters of Z85 each."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> CurveKeys:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def read(cls, path: str | Path) -> CurveKeys:
        """The keys of a file that :meth:`write` made.

        Raises:
            ConfigError: it cannot be read, others may read it, or it holds no keys.
        """
        try:
            text = Path(path).read_text()
            state = os.stat(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the key file {path} cannot be read ({error}); make one with: omni hosts key {path}"
            ) from error
        # A file of another owner, such as a secret that Kubernetes mounts, has been opened to this user by its group.
        others = 0o077 if state.st_uid == os.getuid() else 0o007
        if state.st_mode & others:
            raise ConfigError(
                f"the key file {path} can be read by others (mode {state.st_mode & 0o777:o}); chmod 600 {path}"
            )
        return cls.parse(text, f"the key file {path}")

    @classmethod
    def parse(cls, text: str, where: str) -> CurveKeys:
        """Return the keys that a text of the form of :meth:`text` has. Raises ConfigError, which names ``where``."""
        lines = text.split()
        if len(lines) != 2 or any(len(line) != 40 for line in lines):
            raise ConfigError(f"{where} holds no key pair; make one with: omni hosts key FILE")
        return cls(*lines)

    def text(self) -> str:
        """Return the keys as a key file holds them: two lines."""
        return f"{self.public}\n{self.secret}\n"

    def write(self, path: str | Path) -> None:
        """Write the keys to a new file that only its owner can read. Raises FileExistsError."""
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.text())


def open_listener(host: str, port: int = 0) -> socket.socket:
    """A listening TCP socket on one interface, for :class:`CurveListener`, here or in a child process.

    Raises:
        ConfigError: this machine has no such address, it is that of every interface, or the port is taken.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(place[0]).is_unspecified:
            raise ConfigError(f"{host}: no other host can connect to that; name one address of this one")
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
        self._context = zmq.asyncio.Context()
        self._questions = self._context.socket(zmq.REP)
        self._questions.linger = 0
        self._questions.bind("inproc://zeromq.zap.01")
        self._authenticating = kept_up(self._authenticate, "the authentication of other machines")

    async def _authenticate(self) -> None:
        """Answer ZMQ's question whether the owner of a key may connect (RFC 27, ZAP)."""
        mine = zmq.utils.z85.decode(self.keys.public)
        while True:
            version, number, _, _, _, mechanism, *credentials = await self._questions.recv_multipart()
            known = mechanism == b"CURVE" and credentials == [mine]
            verdict = (b"200", b"OK") if known else (b"400", b"this key is not the run's")
            await self._questions.send_multipart([version, number, *verdict, b"", b""])

    def socket(self, kind: int, socket_class: Any = None, silence: float = SILENCE_SECONDS) -> Any:
        """A socket (by default of ``zmq.asyncio``) that heartbeats, and never holds back the end of the process.

        The sending side ends a connection after the ``silence``. The receiving side must not, as it hears nothing while its process is
        too busy to read. It ends a connection when the other machine has acknowledged nothing for so long.
        """
        made = self._context.socket(kind, socket_class)
        made.linger = 0
        made.ipv6 = True
        receives = kind == zmq.PULL
        made.heartbeat_ivl = min(_HEARTBEAT_MS, round(silence * 1000 / 3))
        made.heartbeat_timeout = round((LONGEST_SILENCE_SECONDS if receives else silence) * 1000)
        if receives:  # a sender may find no room on the other machine for longer
            made.tcp_maxrt = round(silence * 1000)
        made.connect_timeout, made.handshake_ivl = _CONNECT_MS, _HANDSHAKE_MS
        made.maxmsgsize = PIECE_BYTES + _ENVELOPE_BYTES  # checked before the handshake, when anybody may send
        made.sndhwm = made.rcvhwm = _IN_SOCKET_MESSAGES
        made.curve_publickey = self.keys.public.encode()
        made.curve_secretkey = self.keys.secret.encode()
        return made

    def close(self) -> None:
        """Close every socket that is left, and end the I/O thread, which would wait for them."""
        self._authenticating.cancel()
        self._context.destroy(linger=0)


class CurveListener:
    """The receiving end: every frame of every peer that owns the keys.

    Args:
        listener: a listening TCP socket, which stays its owner's.
        silence: seconds in which the other machine acknowledges nothing, after which a connection is closed here.
    """

    def __init__(
        self,
        context: CurveContext,
        listener: socket.socket,
        on_frame: OnFrame,
        silence: float = LONGEST_SILENCE_SECONDS,
    ) -> None:
        self._on_frame = on_frame
        self._socket = context.socket(zmq.PULL, silence=silence)
        self._socket.curve_server = True
        self._socket.use_fd = os.dup(listener.fileno())
        host, port = listener.getsockname()[:2]
        self._socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        self._reading = kept_up(self._read, "the reading of other machines")

    async def _read(self) -> None:
        while True:
            pieces = [memoryview(piece.buffer) for piece in await self._socket.recv_multipart(copy=False)]
            try:
                document, raw = parse_frame(pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces)))
            except CodecError as error:
                logger.warning("a message of another machine was dropped: %s", error)
            else:
                self._on_frame(document, raw)

    def close(self) -> None:
        self._reading.cancel()
        self._socket.close()


class CurveLink:
    """The sending end of one connection: takes whole frames, as long as there is a connection that takes them.

    Args:
        on_lost: called once, with the reason, when the connection has ended or cannot be made.
        silence: seconds without a sign of the other side after which it has ended.
    """

    def __init__(
        self, context: CurveContext, address: str, on_lost: Callable[[str], None], silence: float = SILENCE_SECONDS
    ) -> None:
        self._address = address
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._callback: Callable[[], None] | None = None
        self._socket = context.socket(zmq.PUSH, zmq.Socket, silence)
        self._socket.curve_serverkey = context.keys.public.encode()
        self._socket.immediate = True
        self._socket.reconnect_ivl = -1  # the control plane connects anew when a peer is back
        self._monitor = self._socket.get_monitor_socket()
        self._watching = watched(self._watch(self._monitor), f"the watch of the connection to {address}", self._failed)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self._loop.call_soon(on_lost, f"{address} is no address to connect to: {error}")
        self._loop.add_reader(self._socket.fd, self._look)

    def write(self, parts: Sequence[memoryview]) -> int:
        """Send a whole frame. Raises BlockingIOError: not now."""
        nbytes = sum(part.nbytes for part in parts)
        pieces = [b"".join(parts)] if nbytes <= PIECE_BYTES else _pieces(parts)
        try:
            for number, piece in enumerate(pieces, 1):
                self._socket.send(piece, zmq.NOBLOCK | (zmq.SNDMORE if number < len(pieces) else 0))
        except zmq.Again:  # behind the first piece: the connection has just ended, and nothing of the frame is received
            raise BlockingIOError from None
        except zmq.ZMQError as error:
            raise OSError(str(error)) from error
        return nbytes

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
        if self._socket.events & zmq.POLLOUT:
            self._callback()
            self._loop.call_soon(self._look)

    async def _watch(self, monitor: Any) -> None:
        """Wait for the end of the connection."""
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

    def _failed(self, error: BaseException) -> None:
        self._on_lost(f"{self._address}: the connection cannot be watched: {error}")

    def close(self) -> None:
        if self._socket.closed:
            return
        self._callback = None
        self._loop.remove_reader(self._socket.fd)
        self._watching.cancel()
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()


def _pieces(parts: Sequence[memoryview]) -> list[memoryview]:
    """Cut the parts of a large frame into pieces of at most :data:`PIECE_BYTES`."""
    return [part[at : at + PIECE_BYTES] for part in parts for at in range(0, part.nbytes, PIECE_BYTES)]


class CurveNetwork(Network):
    """A process's end of the connections between hosts.

    Args:
        listener: the listening TCP socket by which other hosts reach it, closed with this object; ``None`` if none has to.
        silence: seconds without a sign of the other side after which a connection has ended; ``None``: each run has its own.

    Attributes:
        silences: by address, the ``silence`` of connections that will be opened, if it is another one.
    """

    def __init__(
        self, keys: CurveKeys, listener: socket.socket | None = None, silence: float | None = SILENCE_SECONDS
    ) -> None:
        self._context = CurveContext(keys)
        self._silence = SILENCE_SECONDS if silence is None else silence
        self._receiving_silence = LONGEST_SILENCE_SECONDS if silence is None else silence
        self.silences: dict[str, float] = {}
        self._listener = listener
        self._incoming: CurveListener | None = None
        self.address = "" if listener is None else join_address(*listener.getsockname()[:2])

    def listen(self, on_frame: OnFrame) -> None:
        if self._listener is not None:
            self._incoming = CurveListener(self._context, self._listener, on_frame, self._receiving_silence)

    def open(self, address: str, on_lost: Callable[[str], None]) -> CurveLink:
        return CurveLink(self._context, address, on_lost, self.silences.get(address, self._silence))

    def close(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
        if self._listener is not None:
            self._listener.close()
        self._context.close()


def of_process(options: dict[str, Any], listener: int | None) -> CurveNetwork:
    """Make the network of a stage process: the target of its :class:`~omni_core.protocol.specs.NetworkSpec`."""
    inherited = None if listener is None else socket.socket(fileno=listener)
    return CurveNetwork(CurveKeys(options["public"], options["secret"]), inherited, options["silence"])


def spec_of(keys: CurveKeys, silence: float = SILENCE_SECONDS) -> NetworkSpec:
    """Return what makes the network of a stage process."""
    options = {"public": keys.public, "secret": keys.secret, "silence": silence}
    return NetworkSpec("omni_launchers.hosts.curve:of_process", options)
