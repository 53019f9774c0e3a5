"""The ends of a Unix-domain connection: frames of several processes, peers that are not there, and sockets of the dead."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_core.control.framing import frame
from omni_core.control.unix import UnixLink, UnixListener
from omni_core.errors import TransportError
from omni_core.protocol.codec import decode
from omni_core.protocol.messages import AbortMessage


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():
            await asyncio.sleep(0.001)


async def test_frames_of_several_links_arrive_in_the_order_of_each(tmp_path: Path) -> None:
    loop, endpoint, names = asyncio.get_running_loop(), f"ipc://{tmp_path}/s", list[str]()
    listener = UnixListener(endpoint, loop, lambda document, raw: names.append(decode(document).request_id))
    links = [UnixLink.open(endpoint, loop) for _ in range(2)]
    for number in range(3):
        for letter, link in zip("ab", links, strict=True):
            assert link is not None
            made = frame(AbortMessage(f"{letter}{number}"))
            assert link.write(made.parts) == made.nbytes
    await until(lambda: len(names) == 6)
    for letter in "ab":
        assert [name for name in names if name[0] == letter] == [f"{letter}{number}" for number in range(3)]
    for link in links:
        assert link is not None
        link.close()
    listener.close()
    assert UnixLink.open(endpoint, loop) is None


async def test_a_link_that_cannot_be_written_now_says_so_and_when_it_can(tmp_path: Path) -> None:
    loop, endpoint, got = asyncio.get_running_loop(), f"ipc://{tmp_path}/s", list[int]()
    listener = UnixListener(endpoint, loop, lambda document, raw: got.append(raw.nbytes))
    link = UnixLink.open(endpoint, loop)
    assert link is not None
    piece, written = memoryview(bytes(1 << 20)), 0
    with pytest.raises(BlockingIOError):
        while True:  # the listener reads only when this function waits
            written += link.write([piece, piece])
    writable = asyncio.Event()
    link.when_writable(writable.set)
    async with asyncio.timeout(5):
        await writable.wait()
    assert written > 0
    link.when_writable(None)
    link.close()
    listener.close()


async def test_nobody_listens_at_an_address_of_the_dead_until_a_successor_takes_it(tmp_path: Path) -> None:
    loop, endpoint = asyncio.get_running_loop(), f"ipc://{tmp_path}/s"
    assert UnixLink.open(endpoint, loop) is None, "nothing was ever there"
    UnixListener(endpoint, loop, lambda document, raw: None).close()
    assert (tmp_path / "s").is_socket()
    assert UnixLink.open(endpoint, loop) is None
    successor = UnixListener(endpoint, loop, lambda document, raw: None)
    link = UnixLink.open(endpoint, loop)
    assert link is not None
    link.close()
    successor.close()


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:1", "ipc://", "/tmp/s"])
async def test_another_form_of_address_is_refused(address: str) -> None:
    with pytest.raises(TransportError, match="it must be of the form ipc://PATH"):
        UnixLink.open(address, asyncio.get_running_loop())


async def test_a_socket_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=r"nowhere/s cannot be made: .*No such file"):
        UnixListener(f"ipc://{tmp_path}/nowhere/s", asyncio.get_running_loop(), lambda document, raw: None)


async def test_a_process_that_sends_nonsense_is_named_and_no_longer_read(tmp_path: Path) -> None:
    loop, endpoint, names, told = (
        asyncio.get_running_loop(),
        f"ipc://{tmp_path}/s",
        list[str](),
        list[tuple[int, str]](),
    )
    listener = UnixListener(
        endpoint,
        loop,
        lambda document, raw: names.append(decode(document).request_id),
        lambda pid, reason: told.append((pid, reason)),
    )
    bad, good = (UnixLink.open(endpoint, loop) for _ in range(2))
    assert bad is not None
    assert good is not None
    bad.write([memoryview(b"".join([*frame(AbortMessage("a")).parts, b"stray"]))])
    await until(lambda: bool(told))
    assert told == [(os.getpid(), "bytes that are no frame: b'stray'")]
    good.write(frame(AbortMessage("b")).parts)
    await until(lambda: len(names) == 2)
    assert names == ["a", "b"]
    with pytest.raises(OSError, match="Broken pipe"):
        bad.write([memoryview(b"more")])
    for each in (bad, good, listener):
        each.close()
