"""The conformance suite of relays, between two real processes (contract: :class:`omni_core.relay.base.Relay`)."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, ClassVar

import pytest

from omni_core.errors import ConfigError, RelayError
from omni_core.protocol.codec import encode, encode_split
from omni_core.references import load
from omni_core.relay.base import Relay, RelayOptions
from omni_testing.driving import driven
from omni_testing.idleness import WAKE_UPS_PER_SECOND, wake_ups
from omni_testing.relay_peer import Peer, PeerError, described

MIB = 2**20

CREDIT_SECONDS = 5.0
"""Seconds that the sender may take to notice that another process has read. Some backends look only every few milliseconds."""


class RelayConformance:
    """Subclass it, name your relay, and pytest runs every test.

    Attributes:
        relay: reference of the class, ``"package.module:Class"``, importable in a new process.
        options: fields of ``RelayOptions`` for both sides beyond those that the suite sets.
        frees_dead_readers: a reader that dies with bytes in its hands gives them back.
        dead_sender_seconds: how soon reading from a dead sender is an error.
        peers_may_join: more than two processes may take part, each when it likes; ``False`` for a fixed world of ranks.
        metadata_bytes: how large an operation's metadata may be; they travel in every control message.
    """

    relay: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    frees_dead_readers: ClassVar[bool] = True
    dead_sender_seconds: ClassVar[float] = 2.0
    peers_may_join: ClassVar[bool] = True
    metadata_bytes: ClassVar[int] = 1024

    def relay_options(self, owner: str, rank: int, directory: str) -> dict[str, Any]:
        """The fields of ``RelayOptions`` of one side: a pool of 2 MiB."""
        common = {"slot_size_mb": 1, "credits": 2, "namespace": os.path.basename(directory), "directory": directory}
        return {**common, "owner": owner, "rank": rank, "world_size": 2, **self.options}

    @staticmethod
    def _need(ability: bool, otherwise: str) -> None:
        if not ability:
            pytest.skip(otherwise)

    @asynccontextmanager
    async def company(self, peers: int) -> AsyncIterator[tuple[Relay, list[Peer]]]:
        """A relay here and one in each of so many other processes."""
        with tempfile.TemporaryDirectory(prefix="omni-relay-") as directory:
            ranks = range(1, peers + 1)
            theirs = [self.relay_options(f"peer{rank}", rank, directory) | {"world_size": peers + 1} for rank in ranks]
            mine = self.relay_options("here", 0, directory) | {"world_size": peers + 1}
            others = [await Peer.start(self.relay, options) for options in theirs]
            relay: Relay = load(self.relay)(RelayOptions(**mine))
            try:
                for peer in others:
                    await peer.ask("descriptors")  # its imports are done before time is measured
                yield relay, others
            finally:
                relay.close()
                for peer in others:
                    await peer.kill()

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Relay, Peer]]:
        """A relay here and one in another process."""
        async with self.company(1) as (relay, (peer,)):
            yield relay, peer

    # --- settings -----------------------------------------------------------------------------------------------------
    def test_an_unknown_setting_is_refused(self) -> None:
        """``relay.settings`` with a typing error must not be ignored: :meth:`RelayOptions.read_settings` refuses it."""
        with tempfile.TemporaryDirectory(prefix="omni-relay-") as directory:
            options = self.relay_options("here", 0, directory)
            settings = {**options.pop("settings", {}), "no_such_setting": 1}
            with pytest.raises(ConfigError, match=r"relay\.settings\.no_such_setting"):
                load(self.relay)(RelayOptions(**options, settings=settings)).close()

    # --- bytes ---------------------------------------------------------------------------------------------------------
    @driven
    async def test_bytes_arrive_exactly(self) -> None:
        async with self.pair() as (relay, peer):
            for size in (0, 1, 63, 4096, 100_001, MIB):
                data = _bytes(size)
                operation = await relay.put_async(data, f"r{size}")
                assert await peer.ask("digest", metadata=operation.metadata, nbytes=size) == _digest(data), size
                await operation.wait_for_completion(10)
            await _all_free(relay)

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
            assert _digest(destination.numpy().tobytes()) == _digest(_bytes(300))

    @driven
    async def test_the_source_may_change_after_the_put(self) -> None:
        async with self.pair() as (relay, peer):
            data = bytearray(_bytes(50_000))
            expected = _digest(data)
            operation = await relay.put_async(data, "r")
            data[:] = bytes(len(data))
            await asyncio.sleep(0)  # what the put has left to the event loop happens before the reader reads
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=len(data)) == expected

    @driven
    async def test_a_destination_of_another_size_is_refused(self) -> None:
        async with self.pair() as (relay, peer):
            metadata = await peer.ask("put", data=b"four", request_id="r")
            with pytest.raises(RelayError):
                await (await relay.get_async(metadata, bytearray(3))).wait_for_completion(5)

    @driven
    async def test_tensors_of_every_kind_arrive(self) -> None:
        torch = pytest.importorskip("torch")
        async with self.pair() as (relay, peer):
            tensors = _tensors(torch)
            encoded = encode_split(tensors)
            assert encoded.nbytes > 10_000
            operation = await relay.put_async(bytearray(encoded.joined()), "r")
            place = {"header": encoded.header, "metadata": operation.metadata, "nbytes": encoded.nbytes}
            theirs = await peer.ask("tensors", **place)
            for name, mine in described(tensors).items():
                assert theirs[name] == mine, name

    @driven
    async def test_metadata_are_small(self) -> None:
        async with self.pair() as (relay, _):
            operation = await relay.put_async(_bytes(MIB), "r")
            size = len(encode(operation.metadata))
            assert size <= self.metadata_bytes, f"metadata of {size} bytes would travel in every control message"

    @driven
    async def test_nonsense_for_metadata_is_refused(self) -> None:
        async with self.pair() as (relay, _):
            for nonsense in (None, [], "x", 7, [1] * 4, {"a": 1}):
                with pytest.raises(RelayError):
                    await (await relay.get_async(nonsense, bytearray(4), "r")).wait_for_completion(5)

    # --- several transfers ---------------------------------------------------------------------------------------------
    @driven
    async def test_two_puts_in_flight_are_two(self) -> None:
        async with self.pair() as (relay, peer):
            first, second = await relay.put_async(_bytes(9000, 1), "a"), await relay.put_async(_bytes(9000, 2), "b")
            assert await peer.ask("digest", metadata=second.metadata, nbytes=9000) == _digest(_bytes(9000, 2))
            await second.wait_for_completion(5)
            assert await peer.ask("digest", metadata=first.metadata, nbytes=9000) == _digest(_bytes(9000, 1))
            await first.wait_for_completion(5)
            await _all_free(relay)

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

            async def one(number: int, size: int) -> None:
                data = _bytes(size, number)
                operation = await relay.put_async(data, f"r{number}")
                assert await peer.ask("digest", metadata=operation.metadata, nbytes=size) == _digest(data)
                await operation.wait_for_completion(20)

            await asyncio.gather(*(one(number, size) for number, size in enumerate(sizes)))
            await _all_free(relay)

    @driven
    async def test_both_sides_send_at_once(self) -> None:
        async with self.pair() as (relay, peer):
            offered = [await peer.ask("put", data=_bytes(100_000, n), request_id=f"t{n}") for n in range(10)]

            async def take(number: int) -> None:
                destination = bytearray(100_000)
                operation = await relay.get_async(offered[number], destination, f"t{number}")
                await operation.wait_for_completion(20)
                assert _digest(destination) == _digest(_bytes(100_000, number)), number

            async def give(number: int) -> None:
                operation = await relay.put_async(_bytes(100_000, 10 + number), f"g{number}")
                digest = await peer.ask("digest", metadata=operation.metadata, nbytes=100_000)
                assert digest == _digest(_bytes(100_000, 10 + number)), number
                await operation.wait_for_completion(20)

            await asyncio.gather(*(work(number) for work in (give, take) for number in range(10)))
            await _all_free(relay)
            await _all_free_at(peer)

    @driven
    async def test_waiting_may_be_given_up_and_repeated(self) -> None:
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(_bytes(1000), "r")
            with pytest.raises(TimeoutError):
                await operation.wait_for_completion(0.05)
            waiting = asyncio.ensure_future(operation.wait_for_completion())
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
            await peer.ask("digest", metadata=operation.metadata, nbytes=1000)
            await operation.wait_for_completion(5)
            await operation.wait_for_completion(5)

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
            await _all_free(relay)

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
    async def test_a_cancelled_get_takes_nothing(self) -> None:
        async with self.pair() as (relay, peer):
            for pause in (0.0, 0.0005):
                metadata = await peer.ask("put", data=_bytes(900_000), request_id="gone")
                reading = asyncio.ensure_future(self._read(relay, metadata, 900_000, "gone"))
                await asyncio.sleep(pause)
                reading.cancel()
                await asyncio.wait([reading])
                relay.cleanup("gone")
                await peer.ask("cleanup", request_id="gone")
                await _all_free_at(peer)
            metadata = await peer.ask("put", data=_bytes(900_000, 2), request_id="next")
            assert _digest(await self._read(relay, metadata, 900_000, "next")) == _digest(_bytes(900_000, 2))

    async def _read(self, relay: Relay, metadata: Any, nbytes: int, request_id: str) -> bytes:
        destination = bytearray(nbytes)
        await (await relay.get_async(metadata, destination, request_id)).wait_for_completion(10)
        return bytes(destination)

    @driven
    async def test_the_dead_stop_nobody_else(self) -> None:
        self._need(self.peers_may_join, "a death ends a fixed world of ranks")
        async with self.company(2) as (relay, (dying, living)):
            for name in ("a", "b"):
                await relay.put_async(_bytes(900_000), name)
            small = await relay.put_async(_bytes(500), "small")
            await dying.ask("digest", metadata=small.metadata, nbytes=500)
            theirs = [await peer.ask("put", data=_bytes(500, 3), request_id="r") for peer in (dying, living)]
            await dying.kill()
            await self._read_after_death(relay, theirs[0], _bytes(500, 3))
            assert _digest(await self._read(relay, theirs[1], 500, "r")) == _digest(_bytes(500, 3))
            waiting = asyncio.ensure_future(relay.put_async(_bytes(900_000, 4), "c"))
            await asyncio.sleep(0.05)
            relay.cleanup("a")
            operation = await asyncio.wait_for(waiting, 5)
            digest = await living.ask("digest", metadata=operation.metadata, nbytes=900_000)
            assert digest == _digest(_bytes(900_000, 4))
            await operation.wait_for_completion(5)

    @driven
    async def test_a_dead_reader_gives_back_what_it_held(self) -> None:
        self._need(self.frees_dead_readers and load(self.relay).has_view, "its readers hold nothing when they die")
        async with self.pair() as (relay, peer):
            operations = [await relay.put_async(bytes(900_000), name) for name in ("a", "b")]
            for name, operation in zip(("a", "b"), operations, strict=True):
                await peer.ask("digest", metadata=operation.metadata, nbytes=900_000, hold=name)
            waiting = asyncio.ensure_future(relay.put_async(bytes(900_000), "c"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await peer.kill()
            await asyncio.wait_for(waiting, 5)

    @driven
    async def test_a_dead_sender_is_noticed_soon(self) -> None:
        async with self.pair() as (relay, peer):
            metadata = await peer.ask("put", data=bytes(1000), request_id="r")
            await peer.kill()
            begin = time.monotonic()
            await self._read_after_death(relay, metadata, bytes(1000))
            assert time.monotonic() - begin < self.dead_sender_seconds

    async def _read_after_death(self, relay: Relay, metadata: Any, data: bytes) -> None:
        """Reading what a dead process had put is an error, unless the relay declares ``bytes_outlive_sender``."""
        destination = bytearray(len(data))
        expectation = nullcontext() if load(self.relay).bytes_outlive_sender else pytest.raises(RelayError)
        with expectation:
            await (await relay.get_async(metadata, destination)).wait_for_completion(30)
        if isinstance(expectation, nullcontext):
            assert _digest(destination) == _digest(data), "it declares that bytes outlive their sender"

    @driven
    async def test_closing_ends_what_waits(self) -> None:
        async with self.pair() as (relay, _):
            first = await relay.put_async(bytes(900_000), "a")
            await relay.put_async(bytes(900_000), "b")
            unread = asyncio.ensure_future(first.wait_for_completion())
            waiting = asyncio.ensure_future(relay.put_async(bytes(900_000), "c"))
            await asyncio.sleep(0.1)
            relay.close()
            with pytest.raises(RelayError):
                await asyncio.wait_for(waiting, 5)
            with suppress(RelayError):
                await asyncio.wait_for(unread, 5)
            with pytest.raises(RelayError):
                await asyncio.wait_for(relay.put_async(b"x", "d"), 5)

    @driven
    async def test_transfers_leave_nothing_behind(self) -> None:
        async with self.pair() as (relay, peer):

            async def transfers(count: int) -> None:
                for number in range(count):
                    operation = await relay.put_async(_bytes(2000, number), f"r{number}")
                    await peer.ask("digest", metadata=operation.metadata, nbytes=2000)
                    await operation.wait_for_completion(5)
                    metadata = await peer.ask("put", data=_bytes(2000, number), request_id=f"s{number}")
                    await self._read(relay, metadata, 2000, f"s{number}")

            await transfers(10)  # what is opened once is open after these
            before, theirs = _possessions(), await peer.ask("descriptors")
            await transfers(60)
            after = _possessions()
            left = after["descriptors"] - before["descriptors"]
            assert left.total() < 30, f"a descriptor of this process is left of each transfer: {left}"
            left_there = await peer.ask("descriptors") - theirs
            assert left_there < 30, f"{left_there} descriptors of the peer are left of 60 transfers"
            assert after["threads"] <= before["threads"]
            assert after["shared"] <= before["shared"]
            await _all_free(relay)
            await _all_free_at(peer)

    @driven
    async def test_closing_twice_is_closing_and_leaves_nothing(self) -> None:
        await self._live_once()  # what is loaded or made once is there after this
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
            woken = wake_ups()
            theirs = await peer.ask("idle", seconds=1.0)
            mine = (time.process_time() - begin, wake_ups() - woken)
            assert max(mine[0], theirs[0]) < 0.015, f"seconds of CPU in a second of idling: {mine[0]}, {theirs[0]}"
            assert max(mine[1], theirs[1]) < WAKE_UPS_PER_SECOND, f"wake-ups while idle: {mine[1]}, {theirs[1]}"

    # --- optional abilities ----------------------------------------------------------------------------------------------
    @driven
    async def test_empty_memory_is_put_without_a_copy(self) -> None:
        self._need(load(self.relay).has_empty, "it has no empty()")
        async with self.pair() as (relay, peer):
            memory = await relay.empty(5000, "r")
            memory[:] = _bytes(5000)
            operation = await relay.put_async(memory, "r")
            assert _in_use(relay)[0] == 1
            del memory
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=5000) == _digest(_bytes(5000))
            await operation.wait_for_completion(5)
            await _all_free(relay)
            await relay.empty(5000, "unwritten")
            relay.cleanup("unwritten")
            assert _in_use(relay) == (0, 0)

    @driven
    async def test_reserved_memory_is_there_at_once_or_not_at_all(self) -> None:
        async with self.pair() as (relay, peer):
            memory = relay.reserve(900_000, "a")
            self._need(memory is not None, "it has no reserve()")
            assert memory is not None
            memory[:] = _bytes(900_000)
            metadata = relay.commit(memory)
            del memory
            held = relay.reserve(900_000, "b")
            assert held is not None
            assert relay.reserve(900_000, "c") is None
            assert await peer.ask("digest", metadata=metadata, nbytes=900_000) == _digest(_bytes(900_000))
            deadline = time.monotonic() + CREDIT_SECONDS
            while relay.reserve(900_000, "d") is None:
                assert time.monotonic() < deadline, "what was read is not there to be reserved again"
                await asyncio.sleep(0.01)

    @driven
    async def test_views_are_read_only_and_free_their_bytes_at_their_end(self) -> None:
        self._need(load(self.relay).has_view, "it has no views")
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(_bytes(3000), "r")
            await peer.ask("digest", metadata=operation.metadata, nbytes=3000, hold="x")
            with pytest.raises(TimeoutError):
                await operation.wait_for_completion(0.1)
            await peer.ask("release", hold="x")
            await operation.wait_for_completion(5)
            metadata = await peer.ask("put", data=_bytes(3000), request_id="s")
            view = relay.get_view(metadata)
            assert view.readonly
            assert _digest(bytes(view)) == _digest(_bytes(3000))


def _bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def _digest(data: bytes | bytearray) -> str:
    """A digest for comparisons: with bytes, where ``CI`` is set, pytest draws the difference in full, which takes minutes."""
    return hashlib.sha256(data).hexdigest()


def _tensors(torch: Any) -> dict[str, Any]:
    """Every dtype and every layout, most of them large enough to leave the message's header."""
    drawn = torch.randn(130, 71, generator=torch.Generator().manual_seed(0))
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64", "complex64"]
    names += ["float8_e4m3fn", "float8_e5m2"]
    made = {name: drawn.mul(9).to(getattr(torch, name)) for name in names}
    layouts = {"transposed": drawn.T, "strided": drawn[::2, 1::3], "expanded": drawn[:1].expand(40, 71)}
    sizes = {"empty": drawn[:0], "scalar": drawn[0, 0], "odd": drawn.to(torch.uint8).flatten()[:4097]}
    return {**made, **layouts, **sizes}


async def _all_free(relay: Relay) -> None:
    """Wait until nothing of this side's pool is in use."""
    deadline = time.monotonic() + CREDIT_SECONDS
    while (left := _in_use(relay)) != (0, 0):
        assert time.monotonic() < deadline, f"{left[0]:g} slots with {left[1]:g} bytes are still in use"
        await asyncio.sleep(0.01)


async def _all_free_at(peer: Peer) -> None:
    """Wait until nothing of the peer's pool is in use."""
    deadline = time.monotonic() + CREDIT_SECONDS
    while left := (await peer.ask("statistics"))["slots_in_use"]:
        assert time.monotonic() < deadline, f"{left:g} slots of the peer are still in use"
        await asyncio.sleep(0.01)


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
    """The number of open descriptors of this process, by kind."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself is gone
            found[os.readlink(f"/proc/self/fd/{name}").partition("[")[0]] += 1
    return found
