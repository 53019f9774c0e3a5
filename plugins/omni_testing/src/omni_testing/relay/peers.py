"""The processes of the conformance suite of relays: one relay here, and one in each of several others."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from omni_core.api import Relay, RelayOptions, load
from omni_testing.relay_peer import Peer

MIB = 2**20

CREDIT_SECONDS = 5.0
"""Seconds that the sender may take to notice that another process has read. Some backends look only every few milliseconds."""


class RelayCompany:
    """The processes between which a relay is tested. The attributes are described at :class:`~omni_testing.RelayConformance`."""

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


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def digest_of(data: bytes | bytearray) -> str:
    """A digest for comparisons: with bytes, where ``CI`` is set, pytest draws the difference in full, which takes minutes."""
    return hashlib.sha256(data).hexdigest()


async def all_free(relay: Relay) -> None:
    """Wait until nothing of this side's pool is in use."""
    deadline = time.monotonic() + CREDIT_SECONDS
    while (left := in_use(relay)) != (0, 0):
        assert time.monotonic() < deadline, f"{left[0]:g} slots with {left[1]:g} bytes are still in use"
        await asyncio.sleep(0.01)


async def all_free_at(peer: Peer) -> None:
    """Wait until nothing of the peer's pool is in use."""
    deadline = time.monotonic() + CREDIT_SECONDS
    while left := (await peer.ask("statistics"))["slots_in_use"]:
        assert time.monotonic() < deadline, f"{left:g} slots of the peer are still in use"
        await asyncio.sleep(0.01)


def in_use(relay: Relay) -> tuple[float, float]:
    counters = relay.statistics()
    return counters["slots_in_use"], counters["bytes_in_use"]
