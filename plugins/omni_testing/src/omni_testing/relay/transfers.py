"""Conformance of relays: bytes and tensors arrive, many at once, and a pool that is full waits."""

from __future__ import annotations

import asyncio
import random
import tempfile
from typing import Any

import pytest

from omni_core.api import ConfigError, RelayError, RelayOptions, load
from omni_core.runtime_api import encode, encode_split
from omni_testing.driving import driven
from omni_testing.relay.peers import (
    MIB,
    RelayCompany,
    all_free,
    all_free_at,
    digest_of,
    random_bytes,
)
from omni_testing.relay_peer import described


class RelayTransfers(RelayCompany):
    """Transfers between two processes that live."""

    def test_an_unknown_setting_is_refused(self) -> None:
        """``relay.settings`` with a typing error must not be ignored: :meth:`RelayOptions.read_settings` refuses it."""
        with tempfile.TemporaryDirectory(prefix="omni-relay-") as directory:
            options = self.relay_options("here", 0, directory)
            settings = {**options.pop("settings", {}), "no_such_setting": 1}
            with pytest.raises(ConfigError, match=r"relay\.settings\.no_such_setting"):
                load(self.relay)(RelayOptions(**options, settings=settings)).close()

    @driven
    async def test_bytes_arrive_exactly(self) -> None:
        async with self.pair() as (relay, peer):
            for size in (0, 1, 63, 4096, 100_001, MIB):
                data = random_bytes(size)
                operation = await relay.put_async(data, f"r{size}")
                assert await peer.ask("digest", metadata=operation.metadata, nbytes=size) == digest_of(data), size
                await operation.wait_for_completion(10)
            await all_free(relay)

    @driven
    async def test_bytes_come_back(self) -> None:
        async with self.pair() as (relay, peer):
            for size in (1, 5000, MIB):
                data = random_bytes(size, seed=1)
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
            expected = digest_of(tensor.numpy().tobytes())
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=70_000) == expected
            metadata = await peer.ask("put", data=random_bytes(300), request_id="s")
            destination = torch.empty(300, dtype=torch.uint8)
            await (await relay.get_async(metadata, destination)).wait_for_completion(10)
            assert digest_of(destination.numpy().tobytes()) == digest_of(random_bytes(300))

    @driven
    async def test_the_source_may_change_after_the_put(self) -> None:
        async with self.pair() as (relay, peer):
            data = bytearray(random_bytes(50_000))
            expected = digest_of(data)
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
            operation = await relay.put_async(random_bytes(MIB), "r")
            size = len(encode(operation.metadata))
            assert size <= self.metadata_bytes, f"metadata of {size} bytes would travel in every control message"

    @driven
    async def test_nonsense_for_metadata_is_refused(self) -> None:
        async with self.pair() as (relay, _):
            for nonsense in (None, [], "x", 7, [1] * 4, {"a": 1}):
                with pytest.raises(RelayError):
                    await (await relay.get_async(nonsense, bytearray(4), "r")).wait_for_completion(5)

    @driven
    async def test_two_puts_in_flight_are_two(self) -> None:
        async with self.pair() as (relay, peer):
            first, second = (
                await relay.put_async(random_bytes(9000, 1), "a"),
                await relay.put_async(random_bytes(9000, 2), "b"),
            )
            assert await peer.ask("digest", metadata=second.metadata, nbytes=9000) == digest_of(random_bytes(9000, 2))
            await second.wait_for_completion(5)
            assert await peer.ask("digest", metadata=first.metadata, nbytes=9000) == digest_of(random_bytes(9000, 1))
            await first.wait_for_completion(5)
            await all_free(relay)

    @driven
    async def test_a_receiver_may_finish_before_the_sender_waits(self) -> None:
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(random_bytes(1000), "r")
            await peer.ask("digest", metadata=operation.metadata, nbytes=1000)
            await asyncio.sleep(0.2)
            await operation.wait_for_completion(1)

    @driven
    async def test_a_put_that_nobody_reads_does_not_complete(self) -> None:
        async with self.pair() as (relay, _):
            operation = await relay.put_async(random_bytes(1000), "r")
            with pytest.raises(TimeoutError):
                await operation.wait_for_completion(0.1)

    @driven
    async def test_many_transfers_at_once(self) -> None:
        async with self.pair() as (relay, peer):
            chance = random.Random(1)
            sizes = [chance.choice((10, 3000, 70_000, 400_000)) for _ in range(60)]

            async def one(number: int, size: int) -> None:
                data = random_bytes(size, number)
                operation = await relay.put_async(data, f"r{number}")
                assert await peer.ask("digest", metadata=operation.metadata, nbytes=size) == digest_of(data)
                await operation.wait_for_completion(20)

            await asyncio.gather(*(one(number, size) for number, size in enumerate(sizes)))
            await all_free(relay)

    @driven
    async def test_both_sides_send_at_once(self) -> None:
        async with self.pair() as (relay, peer):
            offered = [await peer.ask("put", data=random_bytes(100_000, n), request_id=f"t{n}") for n in range(10)]

            async def take(number: int) -> None:
                destination = bytearray(100_000)
                operation = await relay.get_async(offered[number], destination, f"t{number}")
                await operation.wait_for_completion(20)
                assert digest_of(destination) == digest_of(random_bytes(100_000, number)), number

            async def give(number: int) -> None:
                operation = await relay.put_async(random_bytes(100_000, 10 + number), f"g{number}")
                digest = await peer.ask("digest", metadata=operation.metadata, nbytes=100_000)
                assert digest == digest_of(random_bytes(100_000, 10 + number)), number
                await operation.wait_for_completion(20)

            await asyncio.gather(*(work(number) for work in (give, take) for number in range(10)))
            await all_free(relay)
            await all_free_at(peer)

    @driven
    async def test_waiting_may_be_given_up_and_repeated(self) -> None:
        async with self.pair() as (relay, peer):
            operation = await relay.put_async(random_bytes(1000), "r")
            with pytest.raises(TimeoutError):
                await operation.wait_for_completion(0.05)
            waiting = asyncio.ensure_future(operation.wait_for_completion())
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
            await peer.ask("digest", metadata=operation.metadata, nbytes=1000)
            await operation.wait_for_completion(5)
            await operation.wait_for_completion(5)

    @driven
    async def test_a_full_pool_waits_and_goes_on(self) -> None:
        async with self.pair() as (relay, peer):
            first = await relay.put_async(random_bytes(900_000, 1), "a")
            second = await relay.put_async(random_bytes(900_000, 2), "b")
            third = asyncio.ensure_future(relay.put_async(random_bytes(900_000, 3), "c"))
            await asyncio.sleep(0.2)
            assert not third.done(), "two MiB of pool held a third put of 900,000 bytes"
            await peer.ask("digest", metadata=first.metadata, nbytes=900_000)
            operation = await asyncio.wait_for(third, 5)
            assert await peer.ask("digest", metadata=operation.metadata, nbytes=900_000) == digest_of(
                random_bytes(900_000, 3)
            )
            await peer.ask("digest", metadata=second.metadata, nbytes=900_000)

    @driven
    async def test_what_never_fits_is_refused_at_once(self) -> None:
        async with self.pair() as (relay, _):
            with pytest.raises(RelayError, match="slot_size_mb"):
                await asyncio.wait_for(relay.put_async(bytes(5 * MIB), "r"), 2)


def _tensors(torch: Any) -> dict[str, Any]:
    """Every dtype and every layout, most of them large enough to leave the message's header."""
    drawn = torch.randn(130, 71, generator=torch.Generator().manual_seed(0))
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64", "complex64"]
    names += ["float8_e4m3fn", "float8_e5m2"]
    made = {name: drawn.mul(9).to(getattr(torch, name)) for name in names}
    layouts = {"transposed": drawn.T, "strided": drawn[::2, 1::3], "expanded": drawn[:1].expand(40, 71)}
    sizes = {"empty": drawn[:0], "scalar": drawn[0, 0], "odd": drawn.to(torch.uint8).flatten()[:4097]}
    return {**made, **layouts, **sizes}
