"""Pairs of the nccl relay: order, both directions, ends in the middle of a transfer, and cleanup."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from omni_core.errors import ConfigError, PeerDiedError, RelayError
from omni_core.hookspecs import works
from omni_core.relay.base import Relay, RelayOptions
from omni_relay_nccl.plugin import probe
from omni_testing import RelayConformance
from omni_testing.relay_peer import PeerError

pytestmark = pytest.mark.skipif(not works(probe()), reason=str(probe()))

MIB = 2**20


class Pairs(RelayConformance):
    """Two processes with room for 64 MiB in flight."""

    relay = "omni_relay_nccl.relay:NcclRelay"
    options: ClassVar[dict[str, Any]] = {"slot_size_mb": 48, "credits": 2}


def data_of(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


async def fetch(relay: Relay, metadata: Any, size: int) -> bytearray:
    memory = bytearray(size)
    await (await relay.get_async(metadata, memory)).wait_for_completion(30)
    return memory


async def until(condition: Callable[[], bool], what: str, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("nccl-")}


async def test_many_reads_at_once_keep_their_bytes() -> None:
    """NCCL, and gloo in the order of equal sizes, would mix up transfers that the two sides begin in different orders."""
    async with Pairs().pair() as (relay, peer):
        sizes = [1, 100, 100, 100, 5000, 70_000, 70_000, 300_000]
        chance = random.Random(3)
        offered = []
        for number in range(120):
            size = chance.choice(sizes)
            offered.append((size, number, await peer.ask("put", data=data_of(size, number), request_id=f"r{number}")))
        chance.shuffle(offered)
        got = await asyncio.gather(*(fetch(relay, metadata, size) for size, _, metadata in offered))
        for (size, number, _), memory in zip(offered, got, strict=True):
            assert memory == data_of(size, number)


@pytest.mark.full
@pytest.mark.parametrize("pause", [0.0, 0.008, 0.06])
@pytest.mark.parametrize("met", [False, True])
async def test_a_sender_killed_during_a_read_is_an_error_at_once(
    pause: float, met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo may block its thread in the middle of a message, or of the rendezvous."""
    monkeypatch.setattr("omni_relay_nccl.channel._STALLED", timedelta(seconds=2))
    monkeypatch.setattr("omni_relay_nccl.channel._CONNECT", timedelta(seconds=1))
    async with Pairs().pair() as (relay, peer):
        if met:
            assert await fetch(relay, await peer.ask("put", data=b"x", request_id="first"), 1) == b"x"
        size = 40 * MIB
        metadata = await peer.ask("put", data=bytes(size), request_id="r")
        getting = asyncio.ensure_future(fetch(relay, metadata, size))
        await asyncio.sleep(pause)
        os.kill(peer.process.pid, signal.SIGSTOP)  # from here on it cannot finish
        await asyncio.sleep(0.05)
        if getting.done():  # the machine was fast
            assert len(await getting) == size
            return
        begin = time.monotonic()
        await peer.kill()
        with pytest.raises(PeerDiedError):
            await getting
        assert time.monotonic() - begin < 1
        assert not relay._received.bytes_in_use  # type: ignore[attr-defined]
        await until(lambda: not threads(), "the thread of a dead peer is left", 20)


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.04])
async def test_a_reader_killed_during_a_read_does_not_affect_the_sender(pause: float) -> None:
    async with Pairs().pair() as (relay, peer):
        first = await relay.put_async(b"x", "first")
        await peer.ask("digest", metadata=first.metadata, nbytes=1)
        await first.wait_for_completion(5)
        operation = await relay.put_async(bytes(40 * MIB), "r")
        reading = asyncio.ensure_future(peer.ask("digest", metadata=operation.metadata, nbytes=40 * MIB))
        await asyncio.sleep(pause)
        os.kill(peer.process.pid, signal.SIGSTOP)
        await asyncio.sleep(0.05)
        await peer.kill()
        with pytest.raises(PeerError):
            await reading
        await until(lambda: not threads(), "the thread of a dead reader is left")
        relay.cleanup("r")
        assert relay.statistics() == {"slots_in_use": 0, "bytes_in_use": 0}


async def test_a_suspended_sender_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_relay_nccl.channel._CONNECT", timedelta(seconds=1))
    async with Pairs().pair() as (relay, peer):
        assert await fetch(relay, await peer.ask("put", data=b"x", request_id="first"), 1) == b"x"
        size = 40 * MIB
        metadata = await peer.ask("put", data=data_of(size, 1), request_id="r")
        getting = asyncio.ensure_future(fetch(relay, metadata, size))
        await asyncio.sleep(0.01)
        os.kill(peer.process.pid, signal.SIGSTOP)
        await asyncio.sleep(2.5)
        os.kill(peer.process.pid, signal.SIGCONT)
        assert await getting == data_of(size, 1)


async def test_a_closed_relay_leaves_no_thread_and_no_file() -> None:
    async with Pairs().pair() as (relay, peer):
        assert await fetch(relay, await peer.ask("put", data=b"x", request_id="a"), 1) == b"x"
        operation = await relay.put_async(b"y", "b")
        await peer.ask("digest", metadata=operation.metadata, nbytes=1)
        directory = relay.options.directory  # type: ignore[attr-defined]
        assert len(os.listdir(directory)) == 2, "a socket each"
        relay.close()
        assert not threads()
        assert len(os.listdir(directory)) == 1, "more than the peer's socket is left"


async def test_a_sender_that_closes_its_relay_is_an_error() -> None:
    async with Pairs().pair() as (relay, peer):
        operation = await relay.put_async(b"x" * 100, "r")
        relay.close()
        with pytest.raises(PeerError, match="PeerDiedError"):
            await peer.ask("digest", metadata=operation.metadata, nbytes=100)


async def test_invalid_messages_on_the_socket_end_only_their_pair(caplog: pytest.LogCaptureFixture) -> None:
    async with Pairs().pair() as (relay, peer):
        operation = await relay.put_async(b"hello", "r")
        path = operation.metadata[0][0]
        for nonsense in (b"what?\n", b"[1, 2, 3, 4]\n[7]\n", b"{}\n", b"x" * 2**17):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(path)
                stranger.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(stranger, nonsense)
                answer = b""
                while part := await asyncio.wait_for(_received(loop, stranger), 5):
                    answer += part
                assert answer in (b"", b"[1, false]\n")
        assert "whose messages are invalid" in caplog.text
        assert await peer.ask("digest", metadata=operation.metadata, nbytes=5) == digest(b"hello")


async def _received(loop: asyncio.AbstractEventLoop, stranger: socket.socket) -> bytes:
    try:
        return await loop.sock_recv(stranger, 1000)
    except ConnectionError:
        return b""


async def test_a_sender_of_another_host_is_refused_with_advice() -> None:
    async with Pairs().pair() as (relay, peer):
        metadata = await peer.ask("put", data=b"x", request_id="r")
        (path, incarnation), *rest = metadata
        elsewhere = [[path, ["another boot", *incarnation[1:]]], *rest]
        with pytest.raises(RelayError, match="nixl or mooncake"):
            await relay.get_async(elsewhere, bytearray(1))


def test_where_nccl_cannot_be_used_the_device_is_the_host(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("NCCL can be used here")
    from omni_relay_nccl.relay import NcclRelay

    assert NcclRelay(RelayOptions(device="cuda:0", directory=str(tmp_path))).device == "cpu"
    with pytest.raises(RelayError, match="auto or gloo"):
        NcclRelay(RelayOptions(device="cuda:0", directory=str(tmp_path), settings={"backend": "nccl"}))
    with pytest.raises(ConfigError, match="did you mean 'backend'"):
        NcclRelay(RelayOptions(directory=str(tmp_path), settings={"backends": "gloo"}))


def test_only_two_gpus_use_nccl() -> None:
    from omni_relay_nccl.channel import End, common_backend

    one, other, cpu = End("nccl", "GPU-1"), End("nccl", "GPU-2"), End("gloo")
    assert common_backend(one, other) == "nccl"
    assert common_backend(one, one) == common_backend(one, cpu) == common_backend(cpu, one) == "gloo"


async def test_a_relay_without_a_folder_says_so() -> None:
    from omni_relay_nccl.relay import NcclRelay

    relay = NcclRelay(RelayOptions())
    with pytest.raises(RelayError, match="private folder"):
        await relay.put_async(b"x")
    relay.close()
