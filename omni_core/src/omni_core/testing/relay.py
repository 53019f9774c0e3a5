"""What every relay backend must do, between two real processes (contract: :class:`omni_core.transport.relay.Relay`)."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import pytest

from omni_core.errors import RelayError
from omni_core.protocol.codec import decode, encode
from omni_core.references import load
from omni_core.testing.driving import driven
from omni_core.transport.relay import Relay, RelayOptions

MIB = 2**20


class PeerError(Exception):
    """What went wrong in the other process."""


class Peer:
    """A process with a relay of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, name: str, **arguments: Any) -> Any:
        """Have it do something (see ``relay_peer``); what it answers. Raises PeerError."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(encode((name, arguments)).hex().encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise PeerError("the peer has ended")
        state, answer = decode(bytes.fromhex(line.decode()))
        if state == "error":
            raise PeerError(answer)
        return answer

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class RelayConformance:
    """Subclass it, name your relay, and pytest runs every test.

    Attributes:
        relay: reference of the class, ``"package.module:Class"``, importable in a new process.
        options: fields of ``RelayOptions`` for both sides beyond those that the suite sets.
        frees_dead_readers: a reader that dies with bytes in its hands gives them back.
        dead_sender_seconds: how soon reading from a dead sender is an error.
    """

    relay: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    frees_dead_readers: ClassVar[bool] = True
    dead_sender_seconds: ClassVar[float] = 2.0

    def relay_options(self, owner: str, rank: int, directory: str) -> dict[str, Any]:
        """The fields of ``RelayOptions`` of one side: a pool of 2 MiB."""
        common = {"slot_size_mb": 1, "credits": 2, "namespace": os.path.basename(directory), "directory": directory}
        return {**common, "owner": owner, "rank": rank, "world_size": 2, **self.options}

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Relay, Peer]]:
        """A relay here and one in another process."""
        with tempfile.TemporaryDirectory(prefix="omni-relay-") as directory:
            mine = self.relay_options("here", 0, directory)
            theirs = encode(self.relay_options("peer", 1, directory)).hex()
            command = [sys.executable, "-m", "omni_core.testing.relay_peer", self.relay, theirs]
            peer = Peer(
                await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=64 * MIB
                )
            )
            relay: Relay = load(self.relay)(RelayOptions(**mine))
            try:
                yield relay, peer
            finally:
                relay.close()
                await peer.kill()

    # --- bytes ---------------------------------------------------------------------------------------------------------
    @driven
    async def test_bytes_arrive_exactly(self) -> None:
        async with self.pair() as (relay, peer):
            for size in (0, 1, 63, 4096, 100_001, MIB):
                data = _bytes(size)
                operation = await relay.put_async(data, f"r{size}")
                assert await peer.ask("digest", metadata=operation.metadata, nbytes=size) == _digest(data), size
                await operation.wait_for_completion(10)
            assert _in_use(relay) == (0, 0)

    @driven
    async def test_bytes_come_back(self) -> None:
        async with self.pair() as (relay, peer):
            for size in (1, 5000, MIB):
                data = _bytes(size, seed=1)
                metadata = await peer.ask("put", data=data, request_id=f"r{size}")
                destination = bytearray(size)
                await (await relay.get_async(metadata, destination, f"r{size}")).wait_for_completion(10)
                assert bytes(destination) == data, size

    @driven
    async def test_torch_tensors_go_in_and_out(self) -> None:
        torch = pytest.importorskip("torch")
        async with self.pair() as (relay, peer):
            tensor = torch.arange(70_000, dtype=torch.int64).to(torch.uint8)
            operation = await relay.put_async(tensor, "r")
            expected = _digest(tensor.numpy().tobytes())
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=70_000) == expected
            metadata = await peer.ask("put", data=_bytes(300), request_id="s")
            destination = torch.empty(300, dtype=torch.uint8)
            await (await relay.get_async(metadata, destination)).wait_for_completion(10)
            assert destination.numpy().tobytes() == _bytes(300)

    @driven
    async def test_the_source_may_change_after_the_put(self) -> None:
        async with self.pair() as (relay, peer):
            data = bytearray(_bytes(50_000))
            expected = _digest(data)
            operation = await relay.put_async(data, "r")
            data[:] = bytes(len(data))
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=len(data)) == expected

    @driven
    async def test_a_destination_of_another_size_is_refused(self) -> None:
        async with self.pair() as (relay, peer):
            metadata = await peer.ask("put", data=b"four", request_id="r")
            with pytest.raises(RelayError):
                await (await relay.get_async(metadata, bytearray(3))).wait_for_completion(5)

    # --- several transfers ---------------------------------------------------------------------------------------------
    @driven
    async def test_two_puts_in_flight_are_two(self) -> None:
        async with self.pair() as (relay, peer):
            first, second = await relay.put_async(_bytes(9000, 1), "a"), await relay.put_async(_bytes(9000, 2), "b")
            assert await peer.ask("digest", metadata=second.metadata, nbytes=9000) == _digest(_bytes(9000, 2))
            await second.wait_for_completion(5)
            assert await peer.ask("digest", metadata=first.metadata, nbytes=9000) == _digest(_bytes(9000, 1))
            await first.wait_for_completion(5)
            assert _in_use(relay) == (0, 0)

    @driven
    async def test_a_receiver_may_finish_before_the_sender_waits(self) -> None:
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(_bytes(1000), "r")
            await peer.ask("digest", metadata=operation.metadata, nbytes=1000)
            await asyncio.sleep(0.2)
            await operation.wait_for_completion(1)

    @driven
    async def test_a_put_that_nobody_reads_does_not_complete(self) -> None:
        async with self.pair() as (relay, _):
            operation = await relay.put_async(_bytes(1000), "r")
            with pytest.raises(TimeoutError):
                await operation.wait_for_completion(0.1)

    @driven
    async def test_many_transfers_at_once(self) -> None:
        async with self.pair() as (relay, peer):
            chance = random.Random(1)
            sizes = [chance.choice((10, 3000, 70_000, 400_000)) for _ in range(60)]
            order = asyncio.Lock()  # the peer answers one command at a time

            async def one(number: int, size: int) -> None:
                data = _bytes(size, number)
                operation = await relay.put_async(data, f"r{number}")
                async with order:
                    assert await peer.ask("digest", metadata=operation.metadata, nbytes=size) == _digest(data)
                await operation.wait_for_completion(20)

            await asyncio.gather(*(one(number, size) for number, size in enumerate(sizes)))
            assert _in_use(relay) == (0, 0)

    # --- limits --------------------------------------------------------------------------------------------------------
    @driven
    async def test_a_full_pool_waits_and_goes_on(self) -> None:
        async with self.pair() as (relay, peer):
            first = await relay.put_async(_bytes(900_000, 1), "a")
            second = await relay.put_async(_bytes(900_000, 2), "b")
            third = asyncio.ensure_future(relay.put_async(_bytes(900_000, 3), "c"))
            await asyncio.sleep(0.2)
            assert not third.done(), "two MiB of pool held a third put of 900,000 bytes"
            await peer.ask("digest", metadata=first.metadata, nbytes=900_000)
            operation = await asyncio.wait_for(third, 5)
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=900_000) == _digest(_bytes(900_000, 3))
            await peer.ask("digest", metadata=second.metadata, nbytes=900_000)

    @driven
    async def test_what_never_fits_is_refused_at_once(self) -> None:
        async with self.pair() as (relay, _):
            with pytest.raises(RelayError, match="slot_size_mb"):
                await asyncio.wait_for(relay.put_async(bytes(5 * MIB), "r"), 2)

    # --- ends ----------------------------------------------------------------------------------------------------------
    @driven
    async def test_cleanup_frees_what_was_not_read(self) -> None:
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(_bytes(1000), "gone")
            kept = await relay.put_async(_bytes(1000, 2), "kept")
            relay.cleanup("gone")
            relay.cleanup("gone")
            relay.cleanup("never seen")
            assert _in_use(relay)[0] == 1
            with pytest.raises(PeerError, match=r"RelayError|PeerDiedError"):
                await asyncio.wait_for(peer.ask("digest", metadata=operation.metadata, nbytes=1000), 5)
            assert await peer.ask("digest", metadata=kept.metadata, nbytes=1000) == _digest(_bytes(1000, 2))
            await kept.wait_for_completion(5)
            assert _in_use(relay) == (0, 0)

    @driven
    async def test_cleanup_lets_a_waiting_put_go_on(self) -> None:
        async with self.pair() as (relay, _):
            await relay.put_async(bytes(900_000), "a")
            await relay.put_async(bytes(900_000), "b")
            waiting = asyncio.ensure_future(relay.put_async(bytes(900_000), "c"))
            await asyncio.sleep(0.1)
            relay.cleanup("a")
            await asyncio.wait_for(waiting, 5)

    @driven
    async def test_a_cancelled_put_takes_nothing(self) -> None:
        async with self.pair() as (relay, _):
            await relay.put_async(bytes(900_000), "a")
            await relay.put_async(bytes(900_000), "b")
            waiting = asyncio.ensure_future(relay.put_async(bytes(900_000), "c"))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.wait([waiting])
            relay.cleanup("a")
            relay.cleanup("b")
            relay.cleanup("c")
            assert _in_use(relay) == (0, 0)
            await asyncio.wait_for(relay.put_async(bytes(900_000), "d"), 5)

    @driven
    async def test_a_dead_reader_gives_back_what_it_held(self) -> None:
        if not self.frees_dead_readers:
            return
        async with self.pair() as (relay, peer):
            if not relay.has_view:
                return  # its readers hold nothing
            operations = [await relay.put_async(bytes(900_000), name) for name in ("a", "b")]
            for name, operation in zip(("a", "b"), operations, strict=True):
                await peer.ask("digest", metadata=operation.metadata, nbytes=900_000, hold=name)
            waiting = asyncio.ensure_future(relay.put_async(bytes(900_000), "c"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await peer.kill()
            await asyncio.wait_for(waiting, 5)

    @driven
    async def test_a_dead_sender_is_an_error_soon(self) -> None:
        async with self.pair() as (relay, peer):
            metadata = await peer.ask("put", data=bytes(1000), request_id="r")
            await peer.kill()
            begin = time.monotonic()
            with pytest.raises(RelayError):
                await (await relay.get_async(metadata, bytearray(1000))).wait_for_completion(30)
            assert time.monotonic() - begin < self.dead_sender_seconds

    @driven
    async def test_closing_twice_is_closing_and_leaves_nothing(self) -> None:
        await self._live_once()  # whatever is loaded or made once is there after this
        gc.collect()
        before = _possessions()
        await self._live_once()
        end = time.monotonic() + 2
        while (after := _possessions()) != before and time.monotonic() < end:
            gc.collect()
            await asyncio.sleep(0.05)
        assert after["descriptors"].total() <= before["descriptors"].total(), (
            after["descriptors"] - before["descriptors"]
        )
        assert after["threads"] <= before["threads"]
        assert after["shared"] <= before["shared"]

    async def _live_once(self) -> None:
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(bytes(1000), "r")
            await peer.ask("digest", metadata=operation.metadata, nbytes=1000)
            metadata = await peer.ask("put", data=bytes(1000), request_id="s")
            await (await relay.get_async(metadata, bytearray(1000))).wait_for_completion(5)
            await relay.put_async(bytes(1000), "unread")
            relay.close()
            relay.close()

    @driven
    async def test_idle_relays_use_no_cpu(self) -> None:
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(bytes(1000), "r")
            await peer.ask("digest", metadata=operation.metadata, nbytes=1000)
            await operation.wait_for_completion(5)
            await asyncio.sleep(0.2)
            begin = time.process_time()
            theirs = await peer.ask("idle_seconds", seconds=1.0)
            mine = time.process_time() - begin
            assert max(mine, theirs) < 0.015, (mine, theirs)

    # --- optional abilities ----------------------------------------------------------------------------------------------
    @driven
    async def test_empty_memory_is_put_without_a_copy(self) -> None:
        async with self.pair() as (relay, peer):
            if not relay.has_empty:
                return
            memory = await relay.empty(5000, "r")
            memory[:] = _bytes(5000)
            operation = await relay.put_async(memory, "r")
            assert _in_use(relay)[0] == 1
            del memory
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=5000) == _digest(_bytes(5000))
            await operation.wait_for_completion(5)
            await relay.empty(5000, "unwritten")
            relay.cleanup("unwritten")
            assert _in_use(relay) == (0, 0)

    @driven
    async def test_reserved_memory_is_there_at_once_or_not_at_all(self) -> None:
        async with self.pair() as (relay, peer):
            memory = relay.reserve(900_000, "a")
            if memory is None:
                return
            memory[:] = _bytes(900_000)
            metadata = relay.commit(memory)
            del memory
            held = relay.reserve(900_000, "b")
            assert held is not None
            assert relay.reserve(900_000, "c") is None
            assert await peer.ask("digest", metadata=metadata, nbytes=900_000) == _digest(_bytes(900_000))
            end = time.monotonic() + 5
            while (again := relay.reserve(900_000, "d")) is None:  # the credit may take its time
                assert time.monotonic() < end, "the memory was not given back"
                await asyncio.sleep(0.01)
            assert len(again) == 900_000

    @driven
    async def test_views_are_read_only_and_free_their_bytes_at_their_end(self) -> None:
        async with self.pair() as (relay, peer):
            if not relay.has_view:
                return
            operation = await relay.put_async(_bytes(3000), "r")
            await peer.ask("digest", metadata=operation.metadata, nbytes=3000, hold="x")
            with pytest.raises(TimeoutError):
                await operation.wait_for_completion(0.1)
            await peer.ask("release", hold="x")
            await operation.wait_for_completion(5)
            metadata = await peer.ask("put", data=_bytes(3000), request_id="s")
            view = relay.get_view(metadata)
            assert view.readonly
            assert bytes(view) == _bytes(3000)


def _bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def _digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


def _in_use(relay: Relay) -> tuple[float, float]:
    counters = relay.statistics()
    return counters["slots_in_use"], counters["bytes_in_use"]


def _possessions() -> dict[str, Any]:
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    return {
        "descriptors": _descriptors(),
        "threads": threading.active_count(),
        "shared": shared,
    }


def _descriptors() -> Counter[str]:
    """What this process holds open, by kind: how many of each."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself is gone
            found[os.readlink(f"/proc/self/fd/{name}").partition("[")[0]] += 1
    return found
