"""The shm relay: each process owns one pool; producers write into it, consumers read in place.

A consumer maps the producer's pool through ``/proc/<pid>/fd`` (both belong to the same user) and releases a slot by
writing one word. The producer reads those words when it allocates, and waits on a pipe only while its pool is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
import weakref
from collections import deque
from typing import Any

from attrs import define, frozen

from omni_core.api import Relay, RelayError, RelayOperation, RelayOptions, imported
from omni_relay_kit.bounded_pool import Block, BoundedPool, Patience
from omni_relay_shm.peer import PeerPool, has_ended
from omni_relay_shm.pool import DATA_START, SLOTS, PoolMemory, Word, create, fence

_GENERATIONS = 2**32 - 1

QUARANTINE_SECONDS = 60.0
"""Seconds for which the slot of an unread, withdrawn offer is not reused. A late reader may have found the offer and
not yet claimed it; its store must not be mistaken for one about the slot's next use.
"""


@define(eq=False)
class _Slot:
    """A block of the own pool and the slot that describes it to its reader.

    ``pending_free``: to be freed as soon as its reader releases it.
    """

    number: int
    generation: int
    block: Block
    pending_free: bool = False


class _Put(RelayOperation):
    """A put. Complete when its reader has released the block (or it was cleaned up)."""

    def __init__(self, relay: ShmRelay, block: Block, metadata: list[Any]) -> None:
        self.metadata = metadata
        self._relay, self._block = relay, block

    async def wait_for_completion(self, timeout: float | None = None) -> None:
        async with asyncio.timeout(timeout):
            await self._relay.wait_until_freed(self._block)


class _Done(RelayOperation):
    """A get, which is complete when it returns."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata

    async def wait_for_completion(self, timeout: float | None = None) -> None:
        return None


@frozen
class ShmSettings:
    """``relay.settings`` of this backend: it has none."""


class ShmRelay(Relay):
    """See the module. Built from :class:`RelayOptions`; the pool has ``slot_size_mb * credits`` MiB and is made at the
    first put.

    The first transfers touch its pages for the first time; later ones reuse them.
    """

    has_empty = True
    has_view = True

    def __init__(self, options: RelayOptions) -> None:
        options.read_settings(ShmSettings)
        self._size = options.pool_bytes
        self._pool = BoundedPool(
            self._size,
            options.owner,
            patience=Patience(),
            prepare=self._has_free_slot,
            on_wait=self._watch_for_releases,
        )
        self._memory: PoolMemory | None = None
        self._descriptor = -1
        self._pipe: tuple[int, int] | None = None
        self._base = 0
        self._slots: dict[int, _Slot] = {}  # by the key of the block
        self._free_slots = list(range(SLOTS - 1, -1, -1))
        self._quarantine: deque[tuple[float, int]] = deque()  # the time from which a slot may be reused
        self._watched: dict[int, int] = {}
        self._peers: dict[bytes, PeerPool] = {}
        self._closed = False

    def open(self, *, sends: bool) -> None:
        if sends:
            self._own()

    async def empty(self, nbytes: int, request_id: str | None = None) -> memoryview:
        block = await self._allocate(nbytes, request_id)
        return self._own().data(block.offset, nbytes)

    def reserve(self, nbytes: int, request_id: str | None = None) -> memoryview | None:
        memory = self._own()
        block = self._pool.try_allocate(nbytes, request_id)
        return None if block is None else memory.data(self._in_slot(block).offset, nbytes)

    def commit(self, memory: memoryview) -> list[Any]:
        block = self._block_of(memory)
        if block is None:
            raise RelayError("this memory is not from reserve(), or its request was cleaned up")
        return self._offer(block)

    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> _Put:
        source = _bytes_of(tensor)
        block = self._block_of(source)
        if block is None:
            block = await self._allocate(source.nbytes, request_id)
            if source.nbytes:
                self._own().data(block.offset, source.nbytes)[:] = source
        return _Put(self, block, self._offer(block))

    def _offer(self, block: Block) -> list[Any]:
        block.offered = True
        slot = self._slots[block.key]
        assert self._pipe is not None
        place = [os.getpid(), self._descriptor, self._pipe[1], self._size, self._own().token]
        return [*place, slot.number, slot.generation, block.offset, block.nbytes]

    async def wait_until_freed(self, block: Block) -> None:
        """Wait until ``block`` was released or cleaned up."""
        self._reclaim()
        await self._pool.until_freed(block)

    async def _allocate(self, nbytes: int, request_id: str | None) -> Block:
        self._own()
        return self._in_slot(await self._pool.allocate(nbytes, request_id))

    def _in_slot(self, block: Block) -> Block:
        """Give a new block a slot with a new generation; return the block."""
        memory = self._own()
        number = self._free_slots.pop()
        generation = memory.read(number, Word.GENERATION) % _GENERATIONS + 1
        memory.write(number, Word.HOLDER, 0)
        memory.write(number, Word.GENERATION, generation)
        self._slots[block.key] = _Slot(number, generation, block)
        return block

    def _has_free_slot(self) -> bool:
        """Free released blocks; return True if there is a slot for one more block."""
        self._reclaim()
        while self._quarantine and self._quarantine[0][0] <= time.monotonic():
            self._free_slots.append(self._quarantine.popleft()[1])
        if not self._free_slots and self._quarantine:  # thousands were withdrawn since, so no reader is that late
            self._free_slots.append(self._quarantine.popleft()[1])
        return bool(self._free_slots)

    def _watch_for_releases(self) -> None:
        """Ask readers for a wake-up, then look once more: a release between looking and asking would be missed."""
        memory = self._own()
        memory.owner_waits = True
        fence()
        for slot in self._slots.values():
            self._watch_process(memory.read(slot.number, Word.HOLDER))
        self._reclaim()

    def _watch_process(self, pid: int) -> None:
        """Watch for the deaths of readers, which count as releases while an allocation waits."""
        if pid in (0, os.getpid()) or pid in self._watched:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            asyncio.get_running_loop().call_soon(self._reader_died, pid)
            return
        self._watched[pid] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._reader_died, pid)

    def _reader_died(self, pid: int) -> None:
        self._unwatch(pid)
        self._release_for(pid)
        self._on_release()

    def _release_for(self, pid: int) -> None:
        """Release what a dead reader holds."""
        memory = self._own()
        for slot in self._slots.values():
            if memory.read(slot.number, Word.HOLDER) == pid:
                memory.write(slot.number, Word.RELEASED, slot.generation)

    def _unwatch(self, pid: int) -> None:
        descriptor = self._watched.pop(pid, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _on_release(self) -> None:
        """Handle a release while an allocation waits."""
        assert self._pipe is not None
        with contextlib.suppress(BlockingIOError):  # woken by a death, not by a byte
            os.read(self._pipe[0], 4096)
        self._reclaim()
        self._pool.wake_next()
        if self._pool.is_waited_for:
            self._watch_for_releases()
        elif self._memory is not None:
            self._memory.owner_waits = False
            for pid in list(self._watched):
                self._unwatch(pid)

    def _reclaim(self) -> None:
        """Free every block that its reader has released."""
        memory = self._memory
        if memory is None:
            return
        released = [
            slot
            for slot in self._slots.values()
            if memory.read(slot.number, Word.RELEASED) == slot.generation
            # Its request is over and its reader is dead, so no release will come.
            or (slot.pending_free and has_ended(memory.read(slot.number, Word.HOLDER)))
        ]
        for slot in released:
            self._free(slot)

    def _free(self, slot: _Slot, withdrawn: bool = False) -> None:
        """Free a block and its slot. ``withdrawn``: the block was offered, and its reader may still be about to claim
        it.
        """
        del self._slots[slot.block.key]
        if withdrawn:
            self._quarantine.append((time.monotonic() + QUARANTINE_SECONDS, slot.number))
        else:
            self._free_slots.append(slot.number)
        self._pool.free(slot.block)

    def get_view(self, metadata: Any, request_id: str | None = None) -> memoryview:
        memory, wake, slot, generation, offset, nbytes = self._claim(metadata)
        raw = (ctypes.c_char * nbytes).from_buffer(memory.map, DATA_START + offset) if nbytes else bytearray()
        view = memoryview(raw).cast("B").toreadonly()
        if nbytes:
            weakref.finalize(raw, _release, memory, wake, slot, generation).atexit = False
        else:
            _release(memory, wake, slot, generation)
        return view

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> _Done:
        destination = _bytes_of(dest_tensor)
        view = self.get_view(metadata, request_id)
        if view.nbytes != destination.nbytes:
            raise RelayError(f"the destination holds {destination.nbytes} bytes, the sender offers {view.nbytes}")
        destination[:] = view
        return _Done(metadata)

    def _claim(self, metadata: Any) -> tuple[PoolMemory, Any, int, int, int, int]:
        """Claim an offered slot.

        Raises:
            RelayError: the offer was withdrawn, or never existed.
        """
        try:
            pid, descriptor, pipe, size, token, slot, generation, offset, nbytes = metadata
            sane = 0 <= slot < SLOTS and offset >= 0 and nbytes >= 0 and offset + nbytes <= size
        except (TypeError, ValueError) as error:
            raise RelayError(f"not metadata of an shm relay: {metadata!r}") from error
        if not sane:
            raise RelayError(f"these metadata point outside their pool: {metadata!r}")
        memory, wake = self._reach(pid, descriptor, pipe, size, token)
        if memory.read(slot, Word.GENERATION) == generation:
            memory.write(slot, Word.HOLDER, os.getpid())
            fence()
            if memory.read(slot, Word.GENERATION) == generation:
                return memory, wake, slot, generation, offset, nbytes
            memory.write(
                slot, Word.RELEASED, generation
            )  # the slot is in quarantine, so these words are not reused yet
        # Otherwise the slot's words may belong to its next use.
        raise RelayError("the sender has freed these bytes: its request was aborted or has failed")

    def _reach(self, pid: int, descriptor: int, pipe: int, size: int, token: bytes) -> tuple[PoolMemory, Any]:
        if self._memory is not None and token == self._memory.token:
            return self._memory, self._wake_myself
        peer = self._peers.get(token)
        if peer is None:
            peer = self._peers[token] = PeerPool(pid, descriptor, pipe, size, token, self._let_go)
        return peer.memory, peer.wake

    def _let_go(self, token: bytes) -> None:
        self._peers.pop(token).close()

    def _wake_myself(self) -> None:
        if self._pipe is not None:
            os.write(self._pipe[1], b"\0")

    def cleanup(self, request_id: str) -> None:
        memory = self._memory
        if memory is None:
            return
        for block in self._pool.of(request_id):
            slot = self._slots[block.key]
            if slot.pending_free:
                continue
            memory.write(slot.number, Word.GENERATION, slot.generation % _GENERATIONS + 1)  # late readers check it
            fence()
            released = memory.read(slot.number, Word.RELEASED) == slot.generation
            if memory.read(slot.number, Word.HOLDER) and not released:
                slot.pending_free = True  # a view is in use; its release frees the block
            else:
                self._free(slot, withdrawn=block.offered and not released)

    def statistics(self) -> dict[str, float]:
        # A reader that has answered may die before it releases what it read; it counts no more, though nobody waits for its room.
        for pid in {self._own().read(slot.number, Word.HOLDER) for slot in self._slots.values()} - {0, os.getpid()}:
            if has_ended(pid):
                self._release_for(pid)
        self._reclaim()
        return {"bytes_in_use": float(self._pool.bytes_in_use), "slots_in_use": float(len(self._pool))}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        self._slots.clear()
        for pid in list(self._watched):
            self._unwatch(pid)
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe[0])
            for descriptor in (*self._pipe, self._descriptor):
                os.close(descriptor)
            self._pipe = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _own(self) -> PoolMemory:
        """Return the own pool, made at first use: a process that only receives needs none."""
        if self._memory is None:
            if self._closed:
                raise RelayError("the relay is closed")
            self._descriptor, self._memory = create(self._size)
            self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._base = _address(memoryview(self._memory.map))
            asyncio.get_running_loop().add_reader(self._pipe[0], self._on_release)
        return self._memory

    def _block_of(self, source: memoryview) -> Block | None:
        """Return the block that contains ``source``, if it came from :meth:`empty` or :meth:`reserve`."""
        if self._memory is None or source.readonly or not source.nbytes:
            return None
        block = self._pool.at(_address(source) - self._base - DATA_START)
        return block if block is not None and not block.offered and block.nbytes == source.nbytes else None


def _release(memory: PoolMemory, wake: Any, slot: int, generation: int) -> None:
    """Release a view: one store, and a wake-up only if the owner waits."""
    try:
        memory.write(slot, Word.RELEASED, generation)
        fence()
        if memory.owner_waits:
            wake()
    except ValueError:
        return  # the relay was closed first, and unmapped the pool


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _bytes_of(tensor: Any) -> memoryview:
    """Return a flat byte view of a contiguous CPU tensor or of any object with a C-contiguous buffer."""
    torch = imported("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise RelayError("the shm relay moves contiguous CPU tensors; call .cpu().contiguous() first")
        size = tensor.numel() * tensor.element_size()
        return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
    view = memoryview(tensor)
    if not view.c_contiguous:
        raise RelayError("the shm relay moves C-contiguous buffers")
    return view.cast("B")
