"""The tests of a relay's optional abilities, and the suite with all tests."""

from __future__ import annotations

import asyncio
import time

import pytest

from omni_core.api import load
from omni_testing.driving import driven
from omni_testing.relay.ends import RelayEnds
from omni_testing.relay.peers import (
    CREDIT_SECONDS,
    all_free,
    digest_of,
    in_use,
    random_bytes,
)
from omni_testing.relay.transfers import RelayTransfers


class RelayConformance(RelayTransfers, RelayEnds):
    """Subclass it, name your relay, and pytest runs every test.

    Attributes:
        relay: reference of the class, ``"package.module:Class"``, importable in a new process.
        options: fields of ``RelayOptions`` for both sides beyond those that the suite sets.
        frees_dead_readers: a reader that dies with bytes in its hands gives them back.
        dead_sender_seconds: how soon reading from a dead sender is an error.
        peers_may_join: more than two processes may take part, each when it likes; ``False`` for a fixed world of ranks.
        metadata_bytes: how large an operation's metadata may be; they travel in every control message.
    """

    @driven
    async def test_empty_memory_is_put_without_a_copy(self) -> None:
        self._need(load(self.relay).has_empty, "it has no empty()")
        async with self.pair() as (relay, peer):
            memory = await relay.empty(5000, "r")
            memory[:] = random_bytes(5000)
            operation = await relay.put_async(memory, "r")
            assert in_use(relay)[0] == 1
            del memory
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=5000) == digest_of(random_bytes(5000))
            await operation.wait_for_completion(5)
            await all_free(relay)
            await relay.empty(5000, "unwritten")
            relay.cleanup("unwritten")
            assert in_use(relay) == (0, 0)

    @driven
    async def test_reserved_memory_is_there_at_once_or_not_at_all(self) -> None:
        async with self.pair() as (relay, peer):
            memory = relay.reserve(900_000, "a")
            self._need(memory is not None, "it has no reserve()")
            assert memory is not None
            memory[:] = random_bytes(900_000)
            metadata = relay.commit(memory)
            del memory
            held = relay.reserve(900_000, "b")
            assert held is not None
            assert relay.reserve(900_000, "c") is None
            assert await peer.ask("digest", metadata=metadata, nbytes=900_000) == digest_of(random_bytes(900_000))
            deadline = time.monotonic() + CREDIT_SECONDS
            while relay.reserve(900_000, "d") is None:
                assert time.monotonic() < deadline, "what was read is not there to be reserved again"
                await asyncio.sleep(0.01)

    @driven
    async def test_views_are_read_only_and_free_their_bytes_at_their_end(self) -> None:
        self._need(load(self.relay).has_view, "it has no views")
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(random_bytes(3000), "r")
            await peer.ask("digest", metadata=operation.metadata, nbytes=3000, hold="x")
            with pytest.raises(TimeoutError):
                await operation.wait_for_completion(0.1)
            await peer.ask("release", hold="x")
            await operation.wait_for_completion(5)
            metadata = await peer.ask("put", data=random_bytes(3000), request_id="s")
            view = relay.get_view(metadata)
            assert view.readonly
            assert digest_of(bytes(view)) == digest_of(random_bytes(3000))
