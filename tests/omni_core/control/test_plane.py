"""Endpoints are names: their addresses may be told later, and change."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from omni_core.control.plane import ControlPlane
from omni_core.protocol.messages import AbortMessage


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as made:
        yield Path(made)


async def heard(read: list[Any], count: int) -> list[str]:
    async with asyncio.timeout(5):
        while len(read) < count:
            await asyncio.sleep(0.002)
    return [message.request_id for message in read]


async def test_what_is_sent_to_a_name_waits_until_its_address_is_known(folder: Path) -> None:
    read: list[Any] = []
    address = f"ipc://{folder}/b.sock"
    sender = ControlPlane("omni://r/a", lambda message: None, {"omni://r/a": f"ipc://{folder}/a.sock"})
    reader = ControlPlane("omni://r/b", read.append, {"omni://r/b": address})
    reader.listen()
    sender.send("omni://r/b", AbortMessage("1"))
    await asyncio.sleep(0.02)
    assert not read
    sender.peer_is_up("omni://r/b", address)
    sender.send("omni://r/b", AbortMessage("2"))
    assert await heard(read, 2) == ["1", "2"]
    sender.close()
    reader.close()


async def test_who_waits_for_room_at_a_peer_goes_on_when_it_is_dropped(folder: Path) -> None:
    sender = ControlPlane("omni://r/a", lambda message: None, {"omni://r/a": f"ipc://{folder}/a.sock"})
    for number in range(1002):
        sender.send("omni://r/b", AbortMessage(str(number)))
    assert sender.is_behind("omni://r/b")
    waiting = asyncio.ensure_future(sender.room("omni://r/b"))
    await asyncio.sleep(0)
    sender.drop("omni://r/b")
    await asyncio.wait_for(waiting, 1)
    assert not sender.is_behind("omni://r/b")
    sender.close()


async def test_a_peer_that_is_elsewhere_is_connected_to_there(folder: Path) -> None:
    first, second = list[Any](), list[Any]()
    readers = [
        ControlPlane("omni://r/b", read.append, {"omni://r/b": f"ipc://{folder}/{number}.sock"})
        for number, read in enumerate((first, second))
    ]
    for reader in readers:
        reader.listen()
    sender = ControlPlane("omni://r/a", lambda message: None, {"omni://r/b": f"ipc://{folder}/0.sock"})
    sender.send("omni://r/b", AbortMessage("1"))
    assert await heard(first, 1) == ["1"]
    sender.peer_is_up("omni://r/b", f"ipc://{folder}/1.sock")
    sender.send("omni://r/b", AbortMessage("2"))
    assert await heard(second, 1) == ["2"]
    assert len(first) == 1
    for each in (sender, *readers):
        each.close()


class Links:
    """A network whose links take everything."""

    address = "far://a"

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.lost: list[Callable[[str], None]] = []
        self.taken: list[bytes] = []
        self.closed = 0

    def listen(self, on_frame: Any) -> None:
        self.on_frame = on_frame

    def open(self, address: str, on_lost: Callable[[str], None]) -> Links:
        self.opened.append(address)
        self.lost.append(on_lost)
        return self

    def write(self, parts: Sequence[memoryview]) -> int:
        self.taken.append(b"".join(parts))
        return len(self.taken[-1])

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            callback()

    def close(self) -> None:
        self.closed += 1


async def test_an_address_of_another_machine_is_the_networks(folder: Path) -> None:
    network, lost = Links(), list[tuple[str, str]]()
    plane = ControlPlane(
        "omni://r/a",
        lambda message: None,
        {"omni://r/a": f"ipc://{folder}/a.sock", "omni://r/b": "far://b"},
        network,
        lambda endpoint, reason: lost.append((endpoint, reason)),
    )
    plane.listen()
    plane.send("omni://r/b", AbortMessage("1"))
    assert network.opened == ["far://b"]
    assert len(network.taken) == 1
    network.lost[0]("cut")
    network.lost[0]("cut again")
    assert lost == [("omni://r/b", "cut")]
    plane.send("omni://r/b", AbortMessage("2"))
    assert len(network.taken) == 1, "it waits until the peer is said to be up"
    plane.peer_is_up("omni://r/b", "far://c")
    assert network.opened == ["far://b", "far://c"]
    assert len(network.taken) == 2
    plane.close()
    assert network.closed == 3, "both links, and the network itself"
