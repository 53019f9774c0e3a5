"""What one process sends to another: written to a link, or waiting, bounded, in order."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from omni_core.errors import OmniError, TransportError

HIGH_WATER_MARK = 20_000
"""Messages that may wait for one peer. Admission bounds what is in flight; a peer this far behind is not reading."""

BACKLOG_MESSAGES, BACKLOG_BYTES = 1_000, 4 * 2**20
"""What may wait for one peer before its senders are asked to wait (see :meth:`ControlPlane.room`)."""

REMEMBERED_REQUESTS = 20_000
"""How many requests a sender remembers to have written to one peer."""

Work = tuple[str, str]
"""A request and the stage that it is sent to."""

LENGTH_BYTES = 4
"""Before every document: its length, little-endian."""

_LARGEST_MESSAGE = 2**32 - 1
_WRITE_AT_ONCE = 64


class Link(Protocol):
    """The sending end of one connection."""

    def write(self, data: memoryview) -> int:
        """How many bytes of ``data`` were taken. Raises BlockingIOError: none now. OSError: none any more."""

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` whenever something can be written; ``None``: no more."""

    def close(self) -> None: ...


class Peer:
    """What is sent to one peer: written to the link, or waiting."""

    def __init__(
        self, endpoint: str, loop: asyncio.AbstractEventLoop, open_link: Callable[[Peer], Link | None]
    ) -> None:
        self.endpoint = endpoint
        self._loop = loop
        self._open_link = open_link
        self._link: Link | None = None
        self._waiting: deque[tuple[memoryview, Work | None]] = deque()
        self._waiting_bytes = 0
        self._senders: list[asyncio.Future[None]] = []
        self._begun = 0  # bytes of the first waiting message that are written already
        self._reached: OrderedDict[Work, None] = OrderedDict()
        self._failure: OmniError | None = None

    def connect(self) -> None:
        """Connect and write what waits. A peer that is not there yet is connected to when it is said to be up."""
        if self._link is not None:
            return
        self._link = self._open_link(self)
        if self._link is not None and self._waiting:
            self._link.when_writable(self._flush)

    def lose(self, link: Link) -> bool:
        """A link has ended by itself. Whether it was the one in use."""
        if link is not self._link:
            return False
        self._drop_link()
        return True

    def send(self, document: bytes, work: Work | None) -> None:
        if self._failure is not None:
            raise self._failure
        if len(document) > _LARGEST_MESSAGE:
            raise TransportError(f"a control message of {len(document)} bytes is too large; at most {_LARGEST_MESSAGE}")
        if len(self._waiting) >= HIGH_WATER_MARK:
            raise TransportError(f"{self.endpoint} has left {HIGH_WATER_MARK} messages unread; is its process stopped?")
        frame = len(document).to_bytes(LENGTH_BYTES, "little") + document
        if self._link is None or self._waiting:
            self._keep(frame, work)
            return
        try:
            written = self._link.write(memoryview(frame))
        except BlockingIOError:
            written = 0
        except OSError:
            # The process has died, which its parent will tell. This message is the successor's.
            self._drop_link()
            self._keep(frame, work)
            return
        self._note(work)
        if written < len(frame):
            self._keep(frame, work)
            self._begun = written
            self._link.when_writable(self._flush)

    def _keep(self, frame: bytes, work: Work | None) -> None:
        self._waiting.append((memoryview(frame), work))
        self._waiting_bytes += len(frame)

    @property
    def is_behind(self) -> bool:
        return len(self._waiting) > BACKLOG_MESSAGES or self._waiting_bytes > BACKLOG_BYTES

    async def room(self) -> None:
        """Return when the peer is no longer behind."""
        while self.is_behind:
            sender = self._loop.create_future()
            self._senders.append(sender)
            try:
                await sender
            finally:
                if sender in self._senders:
                    self._senders.remove(sender)

    def _let_send(self) -> None:
        """Something that waited is gone."""
        if self._senders and not self.is_behind:
            senders, self._senders = self._senders, []
            for sender in senders:
                if not sender.done():
                    sender.set_result(None)

    def _flush(self) -> None:
        assert self._link is not None
        for _ in range(_WRITE_AT_ONCE):
            if not self._waiting:
                self._link.when_writable(None)
                return
            frame, work = self._waiting[0]
            self._note(work)
            try:
                self._begun += self._link.write(frame[self._begun :])
            except BlockingIOError:
                return
            except OSError:
                self._drop_link()
                return
            if self._begun < len(frame):
                return
            self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._begun = 0
            self._let_send()

    def _note(self, work: Work | None) -> None:
        if work is not None and work not in self._reached:
            self._reached[work] = None
            if len(self._reached) > REMEMBERED_REQUESTS:
                self._reached.popitem(last=False)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._begun = 0  # the successor gets the whole message

    def fail(self, error: OmniError) -> list[Work]:
        self._failure = error
        self._drop_link()
        waiting = [work for _, work in self._waiting if work is not None]
        self._waiting.clear()
        self._waiting_bytes = 0
        self._let_send()
        return waiting

    def disconnect(self) -> list[Work]:
        self._drop_link()
        reached, self._reached = list(self._reached), OrderedDict()
        return reached

    def forget(self, request_id: str) -> None:
        if self._waiting:
            first = [self._waiting[0]] if self._begun else []  # half of it is written: it has to be finished
            kept = [each for each in list(self._waiting)[len(first) :] if each[1] is None or each[1][0] != request_id]
            self._waiting = deque([*first, *kept])
            self._waiting_bytes = sum(len(frame) for frame, _ in self._waiting)
            self._let_send()
