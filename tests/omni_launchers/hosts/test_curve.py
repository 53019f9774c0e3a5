"""Sockets between hosts, on the loopback interface: what strangers send takes no memory, and no message makes a reader deaf."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import zmq

from omni_core.config.addresses import split_address
from omni_core.control import faults
from omni_core.control.framing import frame
from omni_core.control.plane import ControlPlane
from omni_core.protocol.codec import decode, encode_split
from omni_core.protocol.process_messages import PeerUpMessage
from omni_launchers.hosts import messages, versions
from omni_launchers.hosts.curve import PIECE_BYTES, CurveKeys, CurveNetwork, open_listener
from omni_launchers.hosts.server import HostServer
from omni_testing.ours.hosts import HERE, THERE

SECONDS = 30.0
KEYS = CurveKeys.new()
MESSAGE = PeerUpMessage("omni://r/p", "tcp://a:1")
GOOD = b"".join(frame(MESSAGE).parts)
PREFIX = GOOD[: len(GOOD) - len(encode_split(MESSAGE).header)]
JUNK = {
    "nothing": b"",
    "three bytes": b"abc",
    "seven bytes": bytes(7),
    "the beginning of a prefix": PREFIX[:-1],
    "a prefix alone": PREFIX,
    "less than it says": GOOD[:-1],
    "more than it says": GOOD + b"x",
    "a length beyond the end": b"\xff" * 300,
    "no document": PREFIX + b"\xc1" * (len(GOOD) - len(PREFIX)),
    "no message": b"".join(frame(1).parts),
    "random": os.urandom(300),
}


def owner_of_the_keys(address: str, keys: CurveKeys = KEYS) -> zmq.Socket[bytes]:
    """Return a socket that sends what it likes."""
    pushing = zmq.Context.instance().socket(zmq.PUSH)
    pushing.linger, pushing.immediate = 5000, True
    pushing.curve_publickey, pushing.curve_secretkey = keys.public.encode(), keys.secret.encode()
    pushing.curve_serverkey = KEYS.public.encode()
    pushing.connect(address)
    return pushing


class Reader:
    """A listening end, and what it has read."""

    def __init__(self) -> None:
        self.network = CurveNetwork(KEYS, open_listener(HERE))
        self.read: asyncio.Queue[Any] = asyncio.Queue()
        self.on_frame: Callable[[memoryview, memoryview], None] = lambda *parts: self.read.put_nowait(decode(*parts))

    async def next(self) -> Any:
        return await asyncio.wait_for(self.read.get(), SECONDS)


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    made = Reader()
    yield made
    made.network.close()


@pytest.fixture
async def sending() -> AsyncIterator[Callable[[str, list[bytes]], Any]]:
    """Return what sends messages as an owner of the keys."""
    sockets: list[zmq.Socket[bytes]] = []

    async def send(address: str, frames: list[bytes]) -> None:
        sockets.append(owner_of_the_keys(address))
        for each in frames:
            await asyncio.wait_for(asyncio.to_thread(sockets[-1].send, each), SECONDS)

    yield send
    for each in sockets:
        each.close(linger=0)


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
async def test_a_message_that_is_none_is_dropped_and_the_next_one_read(
    junk: bytes, sending: Any, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    network = CurveNetwork(KEYS, open_listener(HERE))
    read: asyncio.Queue[Any] = asyncio.Queue()
    control = ControlPlane(f"ipc://{tmp_path}/a.sock", read.put_nowait, network=network)
    control.listen()
    try:
        await sending(network.address, [junk, GOOD, junk, GOOD])
        for _ in range(2):
            found = await asyncio.wait_for(read.get(), SECONDS)
            while not isinstance(found, PeerUpMessage):
                found = await asyncio.wait_for(read.get(), SECONDS)
    finally:
        control.close()
    assert not [record for record in caplog.records if record.levelno > logging.ERROR or record.name == faults.__name__]


async def test_a_flood_of_junk_neither_ends_the_reading_nor_fills_the_log(
    sending: Any, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    network = CurveNetwork(KEYS, open_listener(HERE))
    read: asyncio.Queue[Any] = asyncio.Queue()

    def on_message(message: Any) -> None:
        read.put_nowait(message)
        assert not isinstance(message, int), "a handler that fails"

    control = ControlPlane(f"ipc://{tmp_path}/a.sock", on_message, network=network)
    control.listen()
    try:
        await sending(network.address, [*JUNK.values()] * 200 + [GOOD])
        while not isinstance(await asyncio.wait_for(read.get(), SECONDS), PeerUpMessage):
            pass
    finally:
        control.close()
    kinds = {record.msg.partition(" (")[0] for record in caplog.records}
    assert len(caplog.records) <= 12 * len(kinds), [record.getMessage() for record in caplog.records]  # of 10 s each
    assert len(kinds) >= 2


async def test_a_reader_that_fails_at_a_message_reads_on(
    reader: Reader, sending: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def once(document: memoryview, raw: memoryview) -> None:
        reader.network._incoming._on_frame = reader.on_frame  # type: ignore[union-attr]
        raise MemoryError("this once")

    reader.network.listen(once)
    await sending(reader.network.address, [GOOD, GOOD])
    assert isinstance(await reader.next(), PeerUpMessage)
    assert "the reading of other machines has failed, and begins again in" in caplog.text
    assert "this once" in caplog.text


async def test_a_host_answers_after_junk_of_an_owner_of_the_keys(reader: Reader, sending: Any) -> None:
    server = HostServer(f"tcp://{THERE}:0", KEYS)
    try:
        reader.network.listen(reader.on_frame)
        run = messages.OpenRun("r~1~b", "r", "b", reader.network.address, versions.installed())
        whole = b"".join(frame(run).parts)
        broken = [
            messages.OpenRun("no session", "r", "b", "no address", {}),
            messages.OpenRun("a~b~c", "r", "c", "tcp://127.0.0.1:1", {}, silence=float("nan")),
            messages.CloseRun("no session"),
            messages.LaunchProcess("no session", 1, "p", b""),
        ]
        frames = [b"".join(frame(each).parts) for each in broken]
        await sending(server.address, [*JUNK.values(), *frames, *JUNK.values(), whole])
        assert isinstance(answer := await reader.next(), messages.RunOpened)
        assert (answer.run, answer.problem) == ("r~1~b", "")
    finally:
        await server.close()


async def test_a_large_message_comes_whole(reader: Reader) -> None:
    reader.network.listen(reader.on_frame)
    sender, lost = CurveNetwork(KEYS), []
    link = sender.open(reader.network.address, lost.append)
    large = PeerUpMessage("omni://r/p", "x" * 5_000_000)
    may_write = asyncio.Event()
    link.when_writable(may_write.set)
    try:
        for message in (large, PeerUpMessage("omni://r/p", "y" * (PIECE_BYTES - 60)), large):
            await asyncio.wait_for(may_write.wait(), SECONDS)
            link.write(frame(message).parts)
            assert await reader.next() == message
        assert not lost
    finally:
        link.close()
        sender.close()


GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
LONG, COMMAND, MORE = 2, 4, 1


@pytest.mark.parametrize("flags", [LONG, LONG | COMMAND, LONG | MORE], ids=["a message", "a command", "a part"])
async def test_a_frame_of_a_stranger_takes_no_memory(reader: Reader, sending: Any, flags: int) -> None:
    reader.network.listen(reader.on_frame)
    claim = 64 << 20

    def accepted() -> int:
        """Return how much of a frame is taken before the connection is cut."""
        sent = 0
        with socket.create_connection(split_address(reader.network.address), timeout=SECONDS) as stranger:
            stranger.sendall(GREETING + bytes([flags]) + struct.pack(">Q", claim))
            with suppress(ConnectionError):
                while sent < claim:
                    sent += stranger.send(bytes(1 << 16))
        return sent

    taken = await asyncio.to_thread(accepted)
    assert taken < claim / 2  # more lies in the kernel's buffers only
    await sending(reader.network.address, [GOOD])
    assert isinstance(await reader.next(), PeerUpMessage)


async def test_an_owner_of_the_keys_who_sends_no_pieces_is_cut(reader: Reader) -> None:
    reader.network.listen(reader.on_frame)
    pushing = owner_of_the_keys(reader.network.address)
    monitor = pushing.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    monitor.rcvtimeo = round(SECONDS * 1000)
    try:
        whole = b"".join(frame(PeerUpMessage("omni://r/p", "x" * (PIECE_BYTES + (4 << 10)))).parts)
        await asyncio.to_thread(pushing.send, whole)
        assert (await asyncio.to_thread(monitor.recv_multipart))[0][:2] == struct.pack("=H", zmq.EVENT_DISCONNECTED)
        assert reader.read.empty()
    finally:
        pushing.disable_monitor()
        monitor.close(linger=0)
        pushing.close(linger=0)
