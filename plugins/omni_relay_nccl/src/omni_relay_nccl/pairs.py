"""The two sides of a pair, one direction from one relay to another. The receiver requests, the sender accepts or
rejects, both transfer.

On the wire, receiver to sender: ``["hello", name, backend, gpu]`` once, ``[number, key, address, nbytes]`` for each
read, ``[number]`` when its bytes have arrived. Sender to receiver: ``["hello", backend]``, then ``[number, accepted]``.
Both ways: ``["store", key, value]`` during rendezvous. Both sides transfer in the order of the sender's answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

from omni_core.api import Buffer, PeerDiedError, RelayError, watched
from omni_relay_nccl.channel import RECEIVER, SENDER, Channel, End, Transfer, common_backend, meet
from omni_relay_nccl.meeting import MeetingStore
from omni_relay_nccl.wire import Wire

logger = logging.getLogger(__name__)


class _Side(ABC):
    """The common part of both sides: a wire, a store for the rendezvous, later a channel."""

    def __init__(self, rank: int, end: End, device: str) -> None:
        self._rank, self._end, self._device = rank, end, device
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._store = MeetingStore(lambda key, value: self._soon(self._tell, key, value))
        self.wire = Wire(self._heard, self._lost)

    def _soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run on the event loop, from the channel's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _tell(self, key: str, value: bytes) -> None:
        self.wire.send(["store", key, b64encode(value).decode()])

    def _meet(self, backend: str, name: str) -> None:
        store, rank, device = self._store, self._rank, self._device
        self._channel = Channel(
            lambda: meet(backend, store, rank, device), lambda transfer: self._soon(self.ended, transfer), name
        )

    def _heard(self, message: list[Any]) -> None:
        if message[0] == "store":
            self._store.put(message[1], b64decode(message[2]))
        elif message[0] == "hello":
            self._greeted(*message[1:])
        else:
            self._told(*message)

    @abstractmethod
    def _greeted(self, *message: Any) -> None:
        """Handle the first message."""

    @abstractmethod
    def _told(self, *message: Any) -> None:
        """Handle any later message."""

    @abstractmethod
    def _lost(self, reason: str) -> None:
        """Handle the end of the wire; ``reason`` if a message was invalid."""

    @abstractmethod
    def ended(self, transfer: Transfer) -> None:
        """Handle the end of a transfer: notify its waiters."""

    def close(self) -> None:
        """Disconnect from the peer; :meth:`join` waits for the thread's end."""
        self.wire.close()
        self._leave()

    def _leave(self) -> None:
        self._store.leave()
        if self._channel is not None:
            self._channel.close()

    def join(self) -> None:
        if self._channel is not None:
            self._channel.join()


class Outgoing(_Side):
    """The sender's side, made for each receiver that connects.

    Args:
        find: returns our offered block by key, address and size.
        on_taken: called with the key of a block whose bytes have arrived.
        on_end: called when the receiver is gone.
    """

    def __init__(
        self,
        end: End,
        device: str,
        find: Callable[[int, int, int], Buffer | None],
        on_taken: Callable[[int], object],
        on_end: Callable[[Outgoing], object],
    ) -> None:
        super().__init__(SENDER, end, device)
        self._find, self._on_taken, self._on_end = find, on_taken, on_end
        self._keys: dict[int, int] = {}

    def _greeted(self, name: str, backend: str, gpu: str) -> None:
        chosen = common_backend(self._end, End(backend, gpu))
        self.wire.send(["hello", chosen])
        self._meet(chosen, f"nccl-to-{name}")

    def _told(self, number: int, *asked: int) -> None:
        if asked:
            self._asked(number, *asked)
        else:
            self._on_taken(self._keys.pop(number))

    def _asked(self, number: int, key: int, address: int, nbytes: int) -> None:
        buffer = self._find(key, address, nbytes)
        self.wire.send([number, buffer is not None])
        if buffer is not None:
            assert self._channel is not None
            self._keys[number] = key
            self._channel.ask(Transfer(buffer, number, nbytes))

    def ended(self, transfer: Transfer) -> None:
        if transfer.error is not None:  # the receiver notices the end of the wire
            logger.debug("nccl: a reader's bytes could not be sent: %s", transfer.error)
            self.wire.close()

    def _lost(self, reason: str) -> None:
        if reason:
            logger.warning("nccl: disconnected a reader whose messages are invalid: %s", reason)
        self._leave()
        self._on_end(self)


class Incoming(_Side):
    """The receiver's side, made for each sender.

    Args:
        path: of the sender's socket.
        name: ours, for the sender's messages.
        on_event: called after reads have ended.
        on_end: called when the sender is gone.

    Raises:
        PeerDiedError: no process listens there.
    """

    def __init__(
        self,
        path: str,
        name: str,
        end: End,
        device: str,
        on_event: Callable[[], object],
        on_end: Callable[[str], object],
    ) -> None:
        super().__init__(RECEIVER, end, device)
        self._path, self._on_event, self._on_end = path, on_event, on_end
        self._pending: dict[int, Transfer] = {}
        self._count = 0
        self._lost_error: RelayError | None = None
        self._connection = _connected(path)
        connecting = self._loop.create_unix_connection(lambda: self.wire, sock=self._connection)
        self._connecting = watched(connecting, f"connecting to {path}", lambda error: self._lost(str(error)))
        self.wire.send(["hello", name, end.backend, end.gpu])

    def read(self, address: int, key: int, buffer: Buffer) -> Transfer:
        """Begin to fill ``buffer`` with the sender's block."""
        self._count += 1
        transfer = Transfer(buffer, self._count, buffer.nbytes)
        self._pending[transfer.number] = transfer
        self.wire.send([transfer.number, key, address, buffer.nbytes])
        return transfer

    def taken(self, transfer: Transfer) -> None:
        """Acknowledge verified bytes, which frees the sender's block."""
        self.wire.send([transfer.number])

    def state(self, transfer: Transfer) -> bool:
        """Return True if it has succeeded. Raises RelayError if it has failed."""
        if transfer.ended and transfer.error is None:
            return True
        if self._lost_error is not None:
            raise self._lost_error
        if transfer.ended:
            raise RelayError(transfer.error)
        return False

    def let_go(self, transfer: Transfer) -> bool:
        """Return True if its block will not be written any more. An accepted transfer runs to its end while both sides
        live.
        """
        if transfer.ended:
            return True
        if self._lost_error is None:
            return False
        transfer.take_away()
        return self._channel is None or self._channel.fills_by_copy

    def _greeted(self, backend: str) -> None:
        self._meet(backend, f"nccl-from-{os.path.basename(self._path)}")

    def _told(self, number: int, agreed: bool) -> None:
        transfer = self._pending.pop(number)
        if agreed:
            assert self._channel is not None
            self._channel.ask(transfer)
        else:
            transfer.error = "the sender has freed these bytes: its request was aborted or has failed"
            transfer.ended = True
            self._on_event()

    def ended(self, transfer: Transfer) -> None:
        if transfer.error is not None and self._lost_error is None:
            self._lost_error = PeerDiedError(f"the process which held the bytes has ended: {transfer.error}")
            self.wire.close()
        self._on_event()

    def _lost(self, reason: str) -> None:
        if self._lost_error is None:
            what = f"cannot be understood ({reason})" if reason else "has ended, or has closed its relay"
            self._lost_error = PeerDiedError(f"the process which held the bytes {what}: {self._path}")
        for transfer in self._pending.values():
            transfer.error, transfer.ended = str(self._lost_error), True
        self._pending.clear()
        self._leave()
        self._on_end(self._path)
        self._on_event()

    def close(self) -> None:
        self._lost_error = self._lost_error or RelayError("the relay was closed")
        if not self._connecting.done():
            self._connecting.cancel()
            self._connection.close()
        super().close()


def _connected(path: str) -> socket.socket:
    """Connect to a socket of this host without waiting."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        if isinstance(error, BlockingIOError):
            raise RelayError(f"the sender does not accept connections: {path}") from error
        raise PeerDiedError(
            f"the process which held the bytes has ended, or has closed its relay: {path} ({error.strerror})"
        ) from error
    return connection
