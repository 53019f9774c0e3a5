"""Base class for pull relays: the sender registers memory, the receiver reads it remotely and acknowledges, which frees
the sender's block. A backend only starts its engine, registers memory, begins reads and polls.

There is no thread: one poller per relay runs while transfers are outstanding, and none if the backend is notified of
events.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from attrs import define, field

from omni_core.api import (
    Buffer,
    Relay,
    RelayError,
    RelayOperation,
    RelayOptions,
    address_of,
    copy,
    flat,
    wait_for_device,
)
from omni_relay_kit.bounded_pool import Block, BoundedPool
from omni_relay_kit.markers import ERASED, MARK_BYTES, TOKEN_BYTES, has_markers, marker, write_markers
from omni_relay_kit.memory import Memory, make_memory
from omni_relay_kit.poller import Poller

LATE_SECONDS = 0.002

_STILL_WRITTEN: list[Memory] = []


@define(eq=False)
class Read:
    """One remote read in progress: of the bytes at ``remote`` of a ``peer``, put with ``token`` and ``key``. ``handle``
    is the backend's; ``began`` is on the monotonic clock.
    """

    peer: list[Any]
    remote: list[Any]
    token: bytes
    key: int
    handle: Any
    done: asyncio.Future[None]
    began: float = field(factory=time.monotonic)

    @property
    def is_late(self) -> bool:
        """True if it takes so long that its peer may have died."""
        return time.monotonic() - self.began > LATE_SECONDS


class _Put(RelayOperation):
    """A put. Complete when its reader has read the bytes (or they were cleaned up)."""

    def __init__(self, pool: BoundedPool, block: Block, metadata: list[Any]) -> None:
        self._pool, self._block, self.metadata = pool, block, metadata

    async def wait_for_completion(self, timeout: float | None = None) -> None:
        await asyncio.wait_for(self._pool.until_freed(self._block), timeout)


class _Get(RelayOperation):
    def __init__(self, metadata: Any, finish: asyncio.Future[None]) -> None:
        self.metadata, self._finish = metadata, finish

    async def wait_for_completion(self, timeout: float | None = None) -> None:
        await asyncio.wait_for(asyncio.shield(self._finish), timeout)


class PulledRelay(Relay):
    """See the module. Each direction has a pool of ``slot_size_mb * credits`` MiB, made at first use.

    A subclass implements the methods below "the backend"; the core calls them on the event loop.

    Attributes:
        reads: those that have not ended.
        closed: true from the begin of :meth:`close`.
    """

    has_empty = True

    needs_polling: ClassVar[bool] = True
    """True if events must be polled for. A backend that is notified of each event calls :meth:`look` and has no poller.
    """

    eager_seconds: ClassVar[float] = 0.0
    """Seconds after :meth:`hurry` during which the poller polls in every iteration of the loop, for engines that
    progress only when polled.
    """

    def __init__(self, options: RelayOptions) -> None:
        self.options = options
        self.device = options.device
        self._sent = BoundedPool(options.pool_bytes, options.owner)
        self._received = BoundedPool(options.pool_bytes, options.owner, "receiving")
        self._source: Memory | None = None
        self._target: Memory | None = None
        self._is_open = False
        self.reads: list[Read] = []
        self._finishing: set[asyncio.Task[None]] = set()
        self._poller = Poller(self.look, self._expects_events, self.eager_seconds)
        self._abandoned: list[tuple[Read, Block]] = []
        self.closed = False
        self.token = os.urandom(TOKEN_BYTES)

    @abstractmethod
    def open_engine(self) -> None:
        """Start. Called once, before anything below; raises RelayError."""

    @abstractmethod
    def register(self, memory: Memory) -> None:
        """Make a pool's memory known to the engine; raises RelayError."""

    @abstractmethod
    def peer_address(self) -> list[Any]:
        """Return plain data by which a peer reaches this process and its registered memory."""

    @abstractmethod
    def begin_read(self, peer: list[Any], remote: list[Any], local: Memory, offset: int, nbytes: int, key: int) -> Any:
        """Begin to read ``nbytes`` of a peer into ``local`` at ``offset``. Returns a handle for the methods below.

        Args:
            peer: the peer's :meth:`peer_address`.
            remote: the location of its bytes: address, device.
            key: sent to the peer when its bytes were read.

        Raises:
            RelayError: it cannot be read.
        """

    @abstractmethod
    def is_read(self, read: Read) -> bool:
        """Return True if a read has succeeded. Raises RelayError if it has failed. Called until either."""

    def give_up(self, read: Read) -> bool:
        """Release a read, however it ended. Return True if its memory will not be written any more; otherwise it is
        called again.
        """
        return True

    def acknowledge(self, read: Read) -> None:
        """Acknowledge a verified read to the peer, if the read itself did not."""

    @abstractmethod
    def acknowledged(self) -> Iterable[int]:
        """Return the keys of our blocks that peers have acknowledged since the last call."""

    @abstractmethod
    def close_engine(self) -> None:
        """Stop, and unregister all memory, which may not be used afterwards."""

    def open(self, *, sends: bool) -> None:
        self._open()

    async def empty(self, nbytes: int, request_id: str | None = None) -> Buffer:
        self._own()
        block = await self._sent.allocate(nbytes + 2 * MARK_BYTES, request_id)
        return self._inside(block, nbytes)

    def reserve(self, nbytes: int, request_id: str | None = None) -> Buffer | None:
        self._own()
        whole = nbytes + 2 * MARK_BYTES
        block = self._sent.try_allocate(whole, request_id)
        if block is None and self.look():
            block = self._sent.try_allocate(whole, request_id)
        return None if block is None else self._inside(block, nbytes)

    def commit(self, memory: Any) -> list[Any]:
        block = self._block_of(flat(memory))
        if block is None:
            raise RelayError("this memory is not from reserve(), or its request was cleaned up")
        return self._offer(block)

    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> _Put:
        source = flat(tensor)
        block = self._block_of(source)
        if block is None:
            self._own()
            block = await self._sent.allocate(source.nbytes + 2 * MARK_BYTES, request_id)
            copy(self._inside(block, source.nbytes), source)
        return _Put(self._sent, block, self._offer(block))

    def _offer(self, block: Block) -> list[Any]:
        memory = self._own()
        whole = memory.part(block.offset, block.nbytes)
        write_markers(whole, marker(self.token, block.key))
        wait_for_device(whole)
        block.offered = True
        self._poll()
        remote = [memory.address + block.offset, memory.device]
        return [self.peer_address(), remote, self.token, block.key, block.nbytes - 2 * MARK_BYTES]

    def _inside(self, block: Block, nbytes: int) -> Buffer:
        return self._own().part(block.offset + MARK_BYTES, nbytes)

    def _block_of(self, source: Buffer) -> Block | None:
        """Return the block that ``source`` fills, if it came from :meth:`empty` or :meth:`reserve`."""
        if self._source is None or not source.nbytes:
            return None
        block = self._sent.at(address_of(source) - self._source.address - MARK_BYTES)
        return block if block is not None and not block.offered and self._fills(source, block) else None

    @staticmethod
    def _fills(source: Buffer, block: Block) -> bool:
        return bool(source.nbytes + 2 * MARK_BYTES == block.nbytes)

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> _Get:
        destination = flat(dest_tensor)
        try:
            peer, (address, device), token, key, nbytes = metadata
            remote = [int(address), str(device)]
            mark = marker(token, key)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise RelayError(f"not metadata of this relay: {metadata!r:.200}") from error
        if destination.nbytes != nbytes:
            raise RelayError(f"the destination holds {destination.nbytes} bytes, the sender offers {nbytes}")
        whole = nbytes + 2 * MARK_BYTES
        block = await self._received.allocate(whole, request_id)
        try:
            self._open()
            if self._target is None:
                self._target = self._made()
            handle = self.begin_read(peer, remote, self._target, block.offset, whole, key)
        except BaseException:
            self._received.free(block)
            raise
        read = Read(peer, remote, token, key, handle, asyncio.get_running_loop().create_future())
        self.reads.append(read)
        self._look_at(read)
        if read in self.reads:
            self._poll()
        finish = asyncio.ensure_future(self._finish(read, self._target, block, destination, mark))
        self._finishing.add(finish)
        finish.add_done_callback(self._finishing.discard)
        finish.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # the waiting caller gets the exception
        return _Get(metadata, finish)

    async def _finish(self, read: Read, memory: Memory, block: Block, destination: Buffer, mark: memoryview) -> None:
        """Wait for the read, verify the markers, and copy the bytes out."""
        try:
            await read.done
            if self.closed:
                raise RelayError("the relay was closed")
            whole = memory.part(block.offset, block.nbytes)
            if not has_markers(whole, mark):
                raise RelayError("the sender has freed these bytes: its request was aborted or has failed")
            self.acknowledge(read)
            copy(destination, whole[MARK_BYTES : block.nbytes - MARK_BYTES])
            wait_for_device(destination)  # the next read may write there
        finally:
            if not self.closed:
                self._let_go(read, block)

    def _let_go(self, read: Read, block: Block) -> None:
        if self.give_up(read):
            self._received.free(block)
        else:
            self._abandoned.append((read, block))
            if not self._poller.is_polling:
                self._poll()

    def hurry(self) -> None:
        """Poll without pauses for a while. This takes a whole core, which the peer may need on a busy machine."""
        self._poller.hurry()

    def _poll(self) -> None:
        if self.needs_polling:
            self._poller.start()

    def _expects_events(self) -> bool:
        """Return True while acknowledgements or finished reads are expected."""
        return not self.closed and bool(self._sent.offered or self.reads or self._abandoned)

    def look(self) -> bool:
        """Process acknowledgements and finished reads now. Return True if there were any. Backends that are notified of
        events call it.
        """
        if self.closed:
            return False
        before = len(self.reads)
        happened = False
        for key in self.acknowledged():
            block = self._sent.get(key)
            if block is not None and block.offered:
                self._sent.free(block)
                happened = True
        for read in list(self.reads):
            self._look_at(read)
        abandoned, self._abandoned = self._abandoned, []
        for read, block in abandoned:
            self._let_go(read, block)
        return happened or len(self.reads) < before

    def _look_at(self, read: Read) -> None:
        try:
            if not self.is_read(read):
                return
        except RelayError as error:
            self._end(read, error)
        else:
            self._end(read, None)

    def _end(self, read: Read, error: RelayError | None) -> None:
        self.reads.remove(read)
        if read.done.done():
            return
        if error is None:
            read.done.set_result(None)
        else:
            read.done.set_exception(error)
            read.done.exception()  # the waiting caller gets the exception

    def offered_bytes(self, key: int, address: int, nbytes: int) -> Buffer | None:
        """Return our block of that key, markers included, for engines whose sender takes part in a read.

        ``None`` if its bytes are not offered (any more), or have another address than the reader's.
        """
        block, memory = self._sent.get(key), self._source
        if block is None or memory is None or not block.offered:
            return None
        if (memory.address + block.offset, block.nbytes) != (address, nbytes):
            return None
        return memory.part(block.offset, block.nbytes)

    def cleanup(self, request_id: str) -> None:
        memory = self._source
        if memory is None or self.closed:
            return
        for block in self._sent.of(request_id):
            write_markers(memory.part(block.offset, block.nbytes), ERASED)  # late readers check either
            self._sent.free(block)

    def statistics(self) -> dict[str, float]:
        return {"bytes_in_use": float(self._sent.bytes_in_use), "slots_in_use": float(len(self._sent))}

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._poller.close()
        under_way = bool(self._abandoned)
        for read in list(self.reads):
            under_way |= not self.give_up(read)
            self._end(read, RelayError("the relay was closed"))
        self._sent.close()
        self._received.close()
        if self._is_open:
            self.close_engine()
        if self._source is not None:
            self._source.close()
        if self._target is not None:
            if under_way:  # the engine may still write there, so the memory stays until the process ends
                _STILL_WRITTEN.append(self._target)
            else:
                self._target.close()

    def _open(self) -> None:
        if self.closed:
            raise RelayError("the relay is closed")
        if not self._is_open:
            self.open_engine()
            self._is_open = True

    def _made(self) -> Memory:
        memory = make_memory(self.options.pool_bytes, self.device)
        self.register(memory)
        return memory

    def _own(self) -> Memory:
        """Return the memory to send from, made at first use: a process that only receives needs none."""
        self._open()
        if self._source is None:
            self._source = self._made()
        return self._source
