"""The NIXL relay: the sender keeps the bytes in a registered pool, the receiver reads them from there and says so.

An agent's address is made known once, as a file in the run's private folder. Every block carries its key before and behind its
bytes, so that a reader of freed memory notices. There is no progress thread (it would burn a core per idle agent): one poller runs
while transfers are outstanding, and only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import time
from pathlib import Path
from typing import Any

from attrs import define, field

from omni_core.errors import PeerDiedError, RelayError
from omni_core.transport.bounded_pool import Block, BoundedPool
from omni_core.transport.relay import Relay, RelayOperation, RelayOptions
from omni_relay_nixl.memory import Memory, memory
from omni_relay_nixl.plugin import BUILDS

_MARK_BYTES = 64
"""Before and behind a block's bytes: its key, padded so that the bytes stay aligned."""

_EAGER_SECONDS, _PATIENT_SECONDS, _SLOW_SECONDS = 0.002, 0.001, 0.005
"""After each event the poller looks in every turn of the loop for a while, then every millisecond, then less often."""


@define(eq=False)
class _Read:
    """One remote read under way."""

    handle: Any
    done: asyncio.Future[None]


class _Put(RelayOperation):
    def __init__(self, relay: NixlRelay, block: Block, metadata: list[Any]) -> None:
        self._relay, self._block, self.metadata = relay, block, metadata

    async def wait_for_completion(self, timeout: float | None = None) -> None:
        await asyncio.wait_for(self._relay.sent.until_freed(self._block), timeout)


class _Get(RelayOperation):
    def __init__(self, metadata: Any, finish: asyncio.Future[None]) -> None:
        self.metadata, self._finish = metadata, finish

    async def wait_for_completion(self, timeout: float | None = None) -> None:
        await asyncio.wait_for(asyncio.shield(self._finish), timeout)


@define(eq=False)
class _Registered:
    """A pool and its memory, known to the agent."""

    pool: BoundedPool
    memory: Memory
    descriptors: Any = field(default=None)


class NixlRelay(Relay):
    """See the module. The pool of each direction has ``slot_size_mb * credits`` MiB and is made when it is first used."""

    def __init__(self, options: RelayOptions) -> None:
        self._options = options
        self._size = options.slot_size_mb * options.credits * 2**20
        self.sent = BoundedPool(self._size, options.owner)
        self._received = BoundedPool(self._size, options.owner)
        self._memories: dict[str, _Registered] = {}
        self._agent: Any = None
        self._name = f"{options.namespace}-{options.owner}-{os.getpid()}"
        self._address = Path(options.directory or ".") / f"nixl-{options.owner}-{os.getpid()}"
        self._peers: dict[str, str] = {}
        self._reads: list[_Read] = []
        self._poller: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._last_event = 0.0
        self._closed = False

    # --- producer ----------------------------------------------------------------------------------------------------
    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> _Put:
        source = _bytes_of(tensor)
        block = await self.sent.allocate(source.nbytes + 2 * _MARK_BYTES, request_id)
        mine = self._registered("sent", self.sent)
        mark = block.key.to_bytes(_MARK_BYTES, "little")
        mine.memory.write(block.offset, memoryview(mark))
        mine.memory.write(block.offset + _MARK_BYTES, source)
        mine.memory.write(block.offset + _MARK_BYTES + source.nbytes, memoryview(mark))
        place = [mine.memory.address + block.offset, mine.memory.device, mine.memory.kind]
        self._poll()
        return _Put(self, block, [self._name, str(self._address), block.key, source.nbytes, *place])

    # --- consumer ----------------------------------------------------------------------------------------------------
    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> _Get:
        destination = _bytes_of(dest_tensor)
        try:
            agent, address, key, nbytes, remote, device, kind = metadata
        except (TypeError, ValueError) as error:
            raise RelayError(f"these are no metadata of a nixl relay: {metadata!r}") from error
        if destination.nbytes != nbytes:
            raise RelayError(f"the destination holds {destination.nbytes} bytes, the sender offers {nbytes}")
        whole = nbytes + 2 * _MARK_BYTES
        block = await self._received.allocate(whole, request_id)
        try:
            mine = self._registered("received", self._received)
            peer = self._connect(agent, address)
            done = self._read(mine, block, (remote, whole, device), kind, peer, key.to_bytes(8, "little"))
        except BaseException:
            self._received.free(block)
            raise
        finish = asyncio.ensure_future(self._finish(done, mine, block, destination, key, agent))
        self._work.add(finish)
        finish.add_done_callback(self._work.discard)
        finish.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever waits is told
        return _Get(metadata, finish)

    def _read(
        self, mine: _Registered, block: Block, remote: tuple[int, int, int], kind: str, peer: str, notice: bytes
    ) -> asyncio.Future[None]:
        agent = self._agent
        local = agent.get_xfer_descs(
            [(mine.memory.address + block.offset, remote[1], mine.memory.device)], mine.memory.kind
        )
        done = asyncio.get_running_loop().create_future()
        try:
            handle = agent.initialize_xfer("READ", local, agent.get_xfer_descs([remote], kind), peer, notice)
            state = agent.transfer(handle)
        except Exception as error:
            raise _as_ours(error, peer) from error
        read = _Read(handle, done)
        if state == "PROC":
            self._reads.append(read)
            self._poll()
        else:
            self._settle(read, state)
        return done

    async def _finish(
        self, done: asyncio.Future[None], mine: _Registered, block: Block, destination: memoryview, key: int, peer: str
    ) -> None:
        """Wait for the read, make sure that the bytes were the sender's own all the time, and copy them out."""
        try:
            try:
                await done
            except RelayError as error:
                raise type(error)(f"the read from {peer} failed: {error}") from error
            marks = bytearray(2 * _MARK_BYTES)
            mine.memory.read(block.offset, memoryview(marks)[:_MARK_BYTES])
            mine.memory.read(block.offset + _MARK_BYTES + destination.nbytes, memoryview(marks)[_MARK_BYTES:])
            if bytes(marks) != 2 * key.to_bytes(_MARK_BYTES, "little"):
                raise RelayError("the sender has freed these bytes: its request was aborted or has failed")
            mine.memory.read(block.offset + _MARK_BYTES, destination)
        finally:
            self._received.free(block)

    # --- the agent ---------------------------------------------------------------------------------------------------
    def _registered(self, name: str, pool: BoundedPool) -> _Registered:
        found = self._memories.get(name)
        if found is None:
            self._start()
            made = memory(self._size, self._options.device)
            found = self._memories[name] = _Registered(pool, made)
            found.descriptors = self._agent.register_memory([(made.address, self._size, made.device, "")], made.kind)
            self._publish()
        return found

    def _start(self) -> None:
        if self._closed:
            raise RelayError("the relay is closed")
        if self._agent is not None:
            return
        for build in BUILDS:
            with contextlib.suppress(ImportError):
                api = importlib.import_module(f"{build}._api")
                break
        else:
            raise RelayError("NIXL is not installed; pip install omni-relay-nixl[cu12]")
        logging.getLogger("nixl").setLevel(logging.WARNING)
        self._agent = api.nixl_agent(self._name, api.nixl_agent_config(enable_prog_thread=False))

    def _publish(self) -> None:
        """Let peers reach what is registered now."""
        part = self._address.with_suffix(".part")
        part.write_bytes(self._agent.get_agent_metadata())
        part.replace(self._address)

    def _connect(self, agent: str, address: str) -> str:
        if agent not in self._peers:
            try:
                self._peers[agent] = _text(self._agent.add_remote_agent(Path(address).read_bytes()))
            except OSError as error:
                raise PeerDiedError(
                    f"the address of {agent} is gone; its process has ended ({error.strerror})"
                ) from error
            except Exception as error:
                raise _as_ours(error, agent) from error
        return self._peers[agent]

    # --- progress ----------------------------------------------------------------------------------------------------
    def _poll(self) -> None:
        self._last_event = time.monotonic()
        if self._poller is None:
            self._poller = asyncio.ensure_future(self._progress())

    async def _progress(self) -> None:
        """Look for notices and finished reads as long as any can come."""
        try:
            while not self._closed and (len(self.sent) or self._reads):
                if self._look():
                    self._last_event = time.monotonic()
                quiet = time.monotonic() - self._last_event
                eager = quiet < _EAGER_SECONDS
                await asyncio.sleep(0 if eager else _PATIENT_SECONDS if quiet < 1.0 else _SLOW_SECONDS)
        finally:
            self._poller = None

    def _look(self) -> bool:
        """One look. Whether anything had happened."""
        happened = False
        for notices in self._agent.get_new_notifs().values():
            for notice in notices:
                block = self.sent.get(int.from_bytes(notice[:8], "little"))
                if block is not None:
                    self.sent.free(block)
                happened = True
        for read in list(self._reads):
            try:
                state = self._agent.check_xfer_state(read.handle)
            except Exception as error:
                self._reads.remove(read)
                self._settle(read, "ERR", _as_ours(error, "its peer"))
            else:
                if state == "PROC":
                    continue
                self._reads.remove(read)
                self._settle(read, state)
            happened = True
        return happened

    def _settle(self, read: _Read, state: str, error: RelayError | None = None) -> None:
        with contextlib.suppress(Exception):
            read.handle.release()
        if read.done.done():
            return
        if state == "DONE":
            read.done.set_result(None)
        else:
            read.done.set_exception(error or RelayError("NIXL says ERR"))

    # --- both --------------------------------------------------------------------------------------------------------
    def cleanup(self, request_id: str) -> None:
        for block in self.sent.of(request_id):
            self._memories["sent"].memory.write(block.offset, memoryview(bytes(_MARK_BYTES)))  # late readers see it
            self.sent.free(block)

    def statistics(self) -> dict[str, float]:
        return {"bytes_in_use": float(self.sent.bytes_in_use), "slots_in_use": float(len(self.sent))}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._poller is not None:
            self._poller.cancel()
        for task in self._work:
            task.cancel()
        for read in self._reads:
            self._settle(read, "ERR", RelayError("the relay was closed"))
        self._reads.clear()
        self.sent.close()
        self._received.close()
        if self._agent is not None:
            for registered in self._memories.values():
                with contextlib.suppress(Exception):
                    self._agent.deregister_memory(registered.descriptors)
            self._memories.clear()
            self._agent = None
            self._address.unlink(missing_ok=True)


def _as_ours(error: Exception, peer: str) -> RelayError:
    kind = PeerDiedError if "Disconnect" in type(error).__name__ or "DISCONNECT" in str(error) else RelayError
    return kind(f"NIXL cannot reach {peer}: {type(error).__name__}: {error}")


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _bytes_of(tensor: Any) -> memoryview:
    """A flat byte view of a contiguous CPU tensor or of anything with a C-contiguous buffer."""
    numpy = getattr(tensor, "numpy", None)
    view = memoryview(numpy() if numpy is not None else tensor)
    if not view.c_contiguous:
        raise RelayError("only contiguous memory can be transferred; call contiguous() first")
    return view.cast("B") if view.nbytes else memoryview(bytearray())
