"""The shm relay beyond the contract of relays: late readers, deaths of either side, forged metadata, and its pool."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from omni_core.errors import RelayError
from omni_core.relay.base import RelayOptions
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


def in_use(relay: ShmRelay) -> tuple[float, float]:
    state = relay.statistics()
    return state["slots_in_use"], state["bytes_in_use"]


def test_the_probe_succeeds_here() -> None:
    assert probe() is None


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


@pytest.mark.parametrize("metadata", [None, [], "x", [1] * 9, [os.getpid(), 0, 0, 10, b"t" * 16, 5000, 1, 0, 5]])
async def test_forged_metadata_are_refused(relay: ShmRelay, metadata: Any) -> None:
    await relay.put_async(b"x")
    with pytest.raises(RelayError):
        relay.get_view(metadata)


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
