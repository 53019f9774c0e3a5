"""Conformance of relays: what is cancelled, cleaned up, closed or dead leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from omni_core.api import Relay, RelayError, load
from omni_testing.driving import driven
from omni_testing.idleness import WAKE_UPS_PER_SECOND, wake_ups
from omni_testing.relay.peers import (
    RelayCompany,
    all_free,
    all_free_at,
    digest_of,
    in_use,
    random_bytes,
)
from omni_testing.relay_peer import PeerError


class RelayEnds(RelayCompany):
    """Ends of transfers, of processes and of relays."""

    @driven
    async def test_cleanup_frees_what_was_not_read(self) -> None:
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(random_bytes(1000), "gone")
            kept = await relay.put_async(random_bytes(1000, 2), "kept")
            relay.cleanup("gone")
            relay.cleanup("gone")
            relay.cleanup("never seen")
            assert in_use(relay)[0] == 1
            with pytest.raises(PeerError, match=r"RelayError|PeerDiedError"):
                await asyncio.wait_for(peer.ask("digest", metadata=operation.metadata, nbytes=1000), 5)
            assert await peer.ask("digest", metadata=kept.metadata, nbytes=1000) == digest_of(random_bytes(1000, 2))
            await kept.wait_for_completion(5)
            await all_free(relay)

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
            assert in_use(relay) == (0, 0)
            await asyncio.wait_for(relay.put_async(bytes(900_000), "d"), 5)

    @driven
    async def test_a_cancelled_get_takes_nothing(self) -> None:
        async with self.pair() as (relay, peer):
            for pause in (0.0, 0.0005):
                metadata = await peer.ask("put", data=random_bytes(900_000), request_id="gone")
                reading = asyncio.ensure_future(self._read(relay, metadata, 900_000, "gone"))
                await asyncio.sleep(pause)
                reading.cancel()
                await asyncio.wait([reading])
                relay.cleanup("gone")
                await peer.ask("cleanup", request_id="gone")
                await all_free_at(peer)
            metadata = await peer.ask("put", data=random_bytes(900_000, 2), request_id="next")
            assert digest_of(await self._read(relay, metadata, 900_000, "next")) == digest_of(random_bytes(900_000, 2))

    async def _read(self, relay: Relay, metadata: Any, nbytes: int, request_id: str) -> bytes:
        destination = bytearray(nbytes)
        await (await relay.get_async(metadata, destination, request_id)).wait_for_completion(10)
        return bytes(destination)

    @driven
    async def test_the_dead_stop_nobody_else(self) -> None:
        self._need(self.peers_may_join, "a death ends a fixed world of ranks")
        async with self.company(2) as (relay, (dying, living)):
            for name in ("a", "b"):
                await relay.put_async(random_bytes(900_000), name)
            small = await relay.put_async(random_bytes(500), "small")
            await dying.ask("digest", metadata=small.metadata, nbytes=500)
            theirs = [await peer.ask("put", data=random_bytes(500, 3), request_id="r") for peer in (dying, living)]
            await dying.kill()
            await self._read_after_death(relay, theirs[0], random_bytes(500, 3))
            assert digest_of(await self._read(relay, theirs[1], 500, "r")) == digest_of(random_bytes(500, 3))
            waiting = asyncio.ensure_future(relay.put_async(random_bytes(900_000, 4), "c"))
            await asyncio.sleep(0.05)
            relay.cleanup("a")
            operation = await asyncio.wait_for(waiting, 5)
            digest = await living.ask("digest", metadata=operation.metadata, nbytes=900_000)
            assert digest == digest_of(random_bytes(900_000, 4))
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
            assert digest_of(destination) == digest_of(data), "it declares that bytes outlive their sender"

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
                    operation = await relay.put_async(random_bytes(2000, number), f"r{number}")
                    await peer.ask("digest", metadata=operation.metadata, nbytes=2000)
                    await operation.wait_for_completion(5)
                    metadata = await peer.ask("put", data=random_bytes(2000, number), request_id=f"s{number}")
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
            assert not _left(before["shared"], after["shared"])
            await all_free(relay)
            await all_free_at(peer)

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
        assert not _left(before["shared"], after["shared"])

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


def _possessions() -> dict[str, Any]:
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    return {
        "descriptors": _descriptors(),
        "threads": threading.active_count(),
        "shared": shared,
    }


def _left(before: set[str], after: set[str]) -> set[str]:
    """Return the names of shared memory that came, without what other programs have come to use meanwhile."""
    return {name for name in after - before if not _is_of_others(name)}


def _is_of_others(name: str) -> bool:
    """Return whether a process that is neither this one nor a descendant of it uses shared memory of this name."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is another user's
            used = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            if f"/dev/shm/{name}\n" in used and not _is_descendant(int(pid)):
                return True
    return False


def _is_descendant(pid: int) -> bool:
    """Return whether a process is this one, or was started by it or by a descendant of it."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return pid == os.getpid()


def _descriptors() -> Counter[str]:
    """The number of open descriptors of this process, by kind."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself is gone
            found[os.readlink(f"/proc/self/fd/{name}").partition("[")[0]] += 1
    return found
