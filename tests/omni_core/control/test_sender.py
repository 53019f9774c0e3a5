"""The IO shell of a peer, on a link that takes nothing, a part, everything, or breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from omni_core.control.back_pressure import BACKLOG_MESSAGES
from omni_core.control.framing import Frame
from omni_core.control.sender import Sender


class FakeLink:
    """Takes ``room`` bytes, then none; breaks if ``room`` is negative."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = b""
        self.callback: Callable[[], None] | None = None
        self.closed = False

    def write(self, parts: Sequence[memoryview]) -> int:
        if self.room < 0:
            raise BrokenPipeError
        if not self.room:
            raise BlockingIOError
        data = b"".join(parts)[: self.room]
        self.taken += data
        self.room -= len(data)
        return len(data)

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        self.callback = callback

    def writable(self, room: int) -> None:
        self.room = room
        assert self.callback is not None
        self.callback()

    def close(self) -> None:
        self.closed = True


def message(text: str) -> Frame:
    return Frame([memoryview(text.encode())], len(text), (text, "s"))


async def connected(*links: FakeLink) -> Sender:
    left = list(links)
    sender = Sender("ipc://there", asyncio.get_running_loop(), lambda _: left.pop(0) if left else None)
    sender.connect()
    return sender


async def test_messages_are_written_at_once_while_the_link_takes_them() -> None:
    link = FakeLink(100)
    sender = await connected(link)
    sender.send(message("one"))
    sender.send(message("two"))
    assert link.taken == b"onetwo"
    assert link.callback is None, "an idle link is not watched"


async def test_the_rest_is_written_when_the_link_takes_more() -> None:
    link = FakeLink(4)
    sender = await connected(link)
    sender.send(message("one"))
    sender.send(message("two"))
    sender.send(message("three"))
    assert link.taken == b"onet"
    link.writable(3)
    assert link.taken == b"onetwot"
    link.writable(100)
    assert link.taken == b"onetwothree"
    assert link.callback is None


async def test_a_broken_link_keeps_its_messages_for_the_next() -> None:
    broken, healthy = FakeLink(3), FakeLink(100)
    sender = await connected(broken, healthy)
    sender.send(message("one"))
    broken.room = -1
    sender.send(message("two"))
    assert broken.closed
    sender.send(message("three"))
    assert sender.down() == [("one", "s")]
    sender.connect()
    assert healthy.callback is not None
    healthy.callback()
    assert healthy.taken == b"twothree"


async def test_a_link_that_ends_by_itself_is_replaced_only_if_it_is_the_one_in_use() -> None:
    first, second = FakeLink(100), FakeLink(100)
    sender = await connected(first, second)
    assert sender.lose(first)
    assert not sender.lose(first)
    sender.connect()
    assert not sender.lose(first)
    assert not second.closed


@pytest.mark.parametrize("end", ["written", "forgotten"])
async def test_senders_wait_until_the_peer_has_caught_up(end: str) -> None:
    link = FakeLink(0)
    sender = await connected(link)
    for _ in range(BACKLOG_MESSAGES + 1):
        sender.send(message("x"))
    assert sender.peer.is_behind
    waiting = asyncio.ensure_future(sender.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    if end == "written":
        link.writable(100)
    else:
        sender.forget("x")
    await asyncio.wait_for(waiting, 1)
