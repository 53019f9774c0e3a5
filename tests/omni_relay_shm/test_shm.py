"""The shm relay: exact bytes, views that free themselves, back-pressure, and cleanup after a death of either side."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from omni_core.errors import RelayError, RelayFullError
from omni_core.relay.base import RelayOptions
from omni_relay_kit.allocator import GRANULE
from omni_relay_kit.bounded_pool import Patience
from omni_relay_shm.plugin import probe
from omni_relay_shm.pool import SLOTS, Word, create
from omni_relay_shm.relay import ShmRelay


class Peer:
    """A second process with a relay of its own."""

    def __init__(self) -> None:
        script = str(Path(__file__).parents[1] / "helpers/peer.py")
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **command: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if "metadata" in command:
            place = command["metadata"]
            command["metadata"] = [*place[:4], place[4].hex(), *place[5:]]
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.kill()


@pytest_asyncio.fixture
async def relay() -> AsyncIterator[ShmRelay]:
    made = ShmRelay(RelayOptions(slot_size_mb=16, credits=2))
    yield made
    made.close()


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_use(relay: ShmRelay) -> tuple[float, float]:
    state = relay.statistics()
    return state["slots_in_use"], state["bytes_in_use"]


def test_the_probe_succeeds_here() -> None:
    assert probe() is None


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4095, 4096, 1_000_000, 16 * 2**20])
async def test_bytes_arrive_exactly(relay: ShmRelay, peer: Peer, size: int) -> None:
    data = random_bytes(size)
    operation = await relay.put_async(data, "r")
    assert peer.ask(do="view", metadata=operation.metadata) == hashlib.sha256(data).hexdigest()
    await operation.wait_for_completion(5)
    assert in_use(relay) == (0, 0)


async def test_the_producer_may_write_in_place(relay: ShmRelay, peer: Peer) -> None:
    memory = await relay.empty(1000, "r")
    memory[:] = random_bytes(1000, 3)
    operation = await relay.put_async(memory, "r")
    assert in_use(relay) == (1, GRANULE)
    del memory
    assert peer.ask(do="view", metadata=operation.metadata) == hashlib.sha256(random_bytes(1000, 3)).hexdigest()


async def test_tensors_in_and_out(relay: ShmRelay) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(5000, dtype=torch.uint8)
    operation = await relay.put_async(tensor, "r")
    destination = torch.empty(5000, dtype=torch.uint8)
    await (await relay.get_async(operation.metadata, destination, "r")).wait_for_completion()
    assert torch.equal(tensor, destination)
    with pytest.raises(RelayError, match="contiguous"):
        await relay.put_async(torch.zeros(10, 10)[:, ::2])
    with pytest.raises(RelayError, match="destination holds 3 bytes"):
        await relay.get_async((await relay.put_async(b"four")).metadata, bytearray(3))


async def test_two_puts_released_out_of_order(relay: ShmRelay, peer: Peer) -> None:
    first, second = await relay.put_async(random_bytes(9000, 1), "a"), await relay.put_async(random_bytes(9000, 2), "b")
    assert peer.ask(do="view", metadata=first.metadata, hold="1") == hashlib.sha256(random_bytes(9000, 1)).hexdigest()
    assert peer.ask(do="view", metadata=second.metadata, hold="2") == hashlib.sha256(random_bytes(9000, 2)).hexdigest()
    peer.ask(do="release", hold="2")
    await second.wait_for_completion(5)
    with pytest.raises(TimeoutError):
        await first.wait_for_completion(0.05)
    peer.ask(do="release", hold="1")
    await first.wait_for_completion(5)
    assert in_use(relay) == (0, 0)


async def test_the_last_reference_of_a_view_frees_its_slot(relay: ShmRelay) -> None:
    operation = await relay.put_async(random_bytes(100_000), "r")
    view = relay.get_view(operation.metadata)
    assert view.readonly
    torch = pytest.importorskip("torch")
    part = torch.frombuffer(view[5000:6000], dtype=torch.uint8)
    del view
    assert in_use(relay)[0] == 1
    assert bytes(part.numpy()) == random_bytes(100_000)[5000:6000]
    thread = threading.Thread(target=lambda box: box.clear(), args=([part],))
    del part
    thread.start()
    thread.join()
    gc.collect()
    assert in_use(relay) == (0, 0)


async def test_a_full_pool_makes_the_producer_wait(relay: ShmRelay, peer: Peer) -> None:
    operations = [await relay.put_async(bytes(8 * 2**20), str(n)) for n in range(4)]
    waiting = [asyncio.create_task(relay.put_async(bytes(8 * 2**20), f"late{n}")) for n in range(2)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    for operation in operations[:2]:
        peer.ask(do="view", metadata=operation.metadata)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert in_use(relay)[0] == 4
    cancelled = asyncio.create_task(relay.put_async(bytes(8 * 2**20), "cancelled"))
    await asyncio.sleep(0.02)
    cancelled.cancel()
    relay.cleanup("late0")
    await asyncio.wait_for(relay.put_async(bytes(8 * 2**20), "after"), 5)


async def test_an_impossible_size_names_the_setting_to_raise(relay: ShmRelay) -> None:
    with pytest.raises(RelayError, match=r"slot_size_mb.*credits"):
        await relay.put_async(bytes(33 * 2**20))


async def test_cleanup_frees_and_late_readers_are_refused(relay: ShmRelay, peer: Peer) -> None:
    taken, untaken = await relay.put_async(b"x" * 5000, "r"), await relay.put_async(b"y" * 5000, "r")
    other = await relay.put_async(b"z" * 5000, "other")
    await relay.empty(5000, "r")
    peer.ask(do="view", metadata=taken.metadata, hold="1")
    relay.cleanup("r")
    relay.cleanup("r")
    assert in_use(relay)[0] == 2, "the held one and the other request's"
    reused = await relay.put_async(b"w" * 5000, "new")
    assert peer.ask(do="view", metadata=untaken.metadata).startswith("RelayError: the sender has freed")
    assert peer.ask(do="view", metadata=reused.metadata) == hashlib.sha256(b"w" * 5000).hexdigest()
    assert peer.ask(do="view", metadata=other.metadata) == hashlib.sha256(b"z" * 5000).hexdigest()
    peer.ask(do="release", hold="1")
    assert in_use(relay) == (0, 0)


async def test_a_late_reader_does_not_touch_the_slots_next_use(relay: ShmRelay, peer: Peer) -> None:
    old = await relay.put_async(b"x" * 5000, "old")
    relay.cleanup("old")
    new = await relay.put_async(b"y" * 5000, "new")
    assert new.metadata[7] == old.metadata[7], "the memory is used again"
    assert peer.ask(do="view", metadata=old.metadata).startswith("RelayError: the sender has freed")
    relay.cleanup("new")  # no reader ever got its metadata
    assert in_use(relay) == (0, 0)


async def test_a_late_reader_that_is_interrupted_does_not_undo_a_release(relay: ShmRelay) -> None:
    """It finds its offer, and before it can claim it the offer is withdrawn and the memory used, read and released
    again.
    """
    old = await relay.put_async(b"x" * 5000, "old")
    memory = relay._own()
    read, interrupted = memory.read, []

    def interrupt(slot: int, word: Word) -> int:
        value = read(slot, word)
        if not interrupted:
            interrupted.append(slot)
            relay.cleanup("old")
            filled = relay.reserve(5000, "new")
            assert filled is not None
            assert bytes(relay.get_view(relay.commit(filled))) == bytes(filled)
        return value

    memory.read = interrupt  # type: ignore[method-assign]
    with pytest.raises(RelayError, match="the sender has freed"):
        relay.get_view(old.metadata)
    assert interrupted
    assert in_use(relay) == (0, 0), "the release of the second use was lost"


async def test_withdrawn_offers_do_not_use_up_the_slots(relay: ShmRelay) -> None:
    for number in range(SLOTS + 10):
        await relay.put_async(b"x", str(number))
        relay.cleanup(str(number))
    assert in_use(relay) == (0, 0)


@pytest.mark.full
async def test_a_request_does_not_wait_for_its_own_blocks(relay: ShmRelay, peer: Peer) -> None:
    held = [await relay.put_async(bytes(16 * 2**20), name) for name in ("stream", "other")]
    for index, operation in enumerate(held):
        peer.ask(do="view", metadata=operation.metadata, hold=str(index))
    patient = asyncio.create_task(relay.empty(2**20, "new"))
    begin = time.monotonic()
    for _ in range(20):
        with pytest.raises(RelayFullError):
            await relay.empty(2**20, "stream")
    assert time.monotonic() - begin < 1.0, "only the first of them waits"
    assert not patient.done()
    peer.ask(do="release", hold="1")
    assert len(await asyncio.wait_for(patient, 2)) == 2**20
    assert len(await asyncio.wait_for(relay.empty(2**20, "stream"), 2)) == 2**20


@pytest.mark.full
async def test_a_stuck_pool_is_waited_for_for_a_bounded_time(relay: ShmRelay, peer: Peer) -> None:
    relay._pool.patience = Patience(stuck=0.5, still_stuck=0.1)
    held = [await relay.put_async(bytes(8 * 2**20), f"h{n}") for n in range(4)]
    for index, operation in enumerate(held):
        peer.ask(do="view", metadata=operation.metadata, hold=str(index))
    begin = time.monotonic()
    waiting = [asyncio.create_task(relay.empty(8 * 2**20, f"w{n}")) for n in range(4)]
    await asyncio.sleep(0.3)
    peer.ask(do="release", hold="0")  # a block was released: the others wait anew
    await asyncio.sleep(0.3)
    assert [task.done() for task in waiting] == [True, False, False, False]
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 3)
    assert sum(isinstance(each, RelayFullError) for each in outcomes) == 3
    assert 0.8 < time.monotonic() - begin < 1.6, "one after the other, as one may have been enough"


async def test_blocks_of_ended_requests_are_freed_after_a_readers_death(relay: ShmRelay, peer: Peer) -> None:
    """No allocation waits here, so the reader is not watched either."""
    operation = await relay.put_async(bytes(5000), "r")
    peer.ask(do="view", metadata=operation.metadata, hold="1")
    relay.cleanup("r")
    assert in_use(relay)[0] == 1
    peer.kill()
    assert in_use(relay) == (0, 0)


async def test_what_a_dead_reader_holds_is_in_use_no_more_though_its_request_has_not_failed(
    relay: ShmRelay, peer: Peer
) -> None:
    """It had answered, and died before it released what it had read."""
    operation = await relay.put_async(bytes(5000), "r")
    peer.ask(do="view", metadata=operation.metadata, hold="1")
    assert in_use(relay)[0] == 1
    peer.kill()
    assert in_use(relay) == (0, 0)


async def test_blocks_of_a_dead_reader_are_freed(relay: ShmRelay, peer: Peer) -> None:
    operations = [await relay.put_async(bytes(16 * 2**20), str(n)) for n in range(2)]
    for index, operation in enumerate(operations):
        peer.ask(do="view", metadata=operation.metadata, hold=str(index))
    waiting = asyncio.create_task(relay.put_async(b"z", "late"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    peer.kill()
    await asyncio.wait_for(waiting, 2)


async def test_a_dead_sender_is_an_error_and_leaves_nothing(relay: ShmRelay, peer: Peer) -> None:
    shm = set(os.listdir("/dev/shm"))
    place = peer.ask(do="put", size=100_000)
    metadata = [*place[:4], bytes.fromhex(place[4]), *place[5:]]
    view = relay.get_view(metadata)
    other = peer.ask(do="put", size=100_000)
    peer.kill()
    assert bytes(view) == bytes(100_000), "a view outlives its sender"
    relay.close()
    fresh = ShmRelay(RelayOptions())
    with pytest.raises(RelayError, match="ended"):
        fresh.get_view([*other[:4], bytes.fromhex(other[4]), *other[5:]])
    fresh.close()
    assert set(os.listdir("/dev/shm")) == shm


@pytest.mark.parametrize("metadata", [None, [], "x", [1] * 9, [os.getpid(), 0, 0, 10, b"t" * 16, 5000, 1, 0, 5]])
async def test_forged_metadata_are_refused(relay: ShmRelay, metadata: Any) -> None:
    await relay.put_async(b"x")
    with pytest.raises(RelayError):
        relay.get_view(metadata)


async def test_a_thousand_transfers_leave_no_descriptor() -> None:
    gc.collect()  # objects of earlier tests must not be freed while we count
    before = descriptors()
    relay = ShmRelay(RelayOptions(slot_size_mb=1, credits=2))
    for index in range(1000):
        operation = await relay.put_async(random_bytes(3000, index % 7), str(index))
        assert bytes(relay.get_view(operation.metadata)) == random_bytes(3000, index % 7)
    assert in_use(relay) == (0, 0)
    held = relay.get_view((await relay.put_async(b"kept", "k")).metadata)
    relay.close()
    relay.close()
    assert bytes(held) == b"kept"
    del held
    gc.collect()
    assert descriptors() == before
    with pytest.raises(RelayError, match="closed"):
        await relay.put_async(b"x")


def test_a_pool_cannot_change_its_size() -> None:
    """Else whoever has it mapped would be killed by SIGBUS."""
    descriptor, memory = create(4096)
    for size in (0, 4096, 2**30):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    memory.close()
    os.close(descriptor)


async def test_a_pool_that_cannot_be_made_is_found_when_the_relay_is_opened() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    relay = ShmRelay(RelayOptions(slot_size_mb=64))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(RelayError, match="no shared memory for a pool of 128 MiB"):
            relay.open(sends=True)
        relay.open(sends=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    relay.cleanup("r")
    relay.close()
