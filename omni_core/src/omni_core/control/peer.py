"""The messages for one peer, in order and bounded, and the record of what has reached it: a state machine without IO.

Events go in (a frame to send, bytes written, the connection made or lost, the peer dead or given up, requests that are over),
and :meth:`Peer.pending` says what to write next. The sockets are :mod:`omni_core.control.plane`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from omni_core.control.back_pressure import BACKLOG_BYTES, BACKLOG_MESSAGES, HIGH_WATER_MARK
from omni_core.control.framing import Frame, Work
from omni_core.errors import OmniError, TransportError

ASK_AFTER = 10_000
"""Pairs of request and stage that are recorded for a peer before its owner asks which requests are still in flight."""


class Peer:
    """The messages for one peer.

    Attributes:
        endpoint: its address.
        connected: there is a connection to write to.
        waiting: the frames that are not written in full, in order.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.connected = False
        self.waiting: deque[Frame] = deque()
        self._waiting_bytes = 0
        self._written = 0  # bytes of the first waiting frame
        self._failure: OmniError | None = None
        self._reached: set[Work] = set()
        self._asked_about: set[Work] = set()
        self._ask_at = ASK_AFTER

    def push(self, frame: Frame) -> None:
        """Add a frame behind those that wait.

        Raises:
            TransportError: :data:`HIGH_WATER_MARK` wait already. OmniError: the peer was given up (see :meth:`fail`).
        """
        if self._failure is not None:
            raise self._failure
        if len(self.waiting) >= HIGH_WATER_MARK:
            raise TransportError(f"{self.endpoint} has left {HIGH_WATER_MARK} messages unread; is its process stopped?")
        if self.waiting or not self.connected:
            frame.own()
        self.waiting.append(frame)
        self._waiting_bytes += frame.nbytes

    def pending(self) -> list[memoryview]:
        """The bytes to write next, in pieces: the rest of the first frame; empty if nothing can be written."""
        if not self.waiting or not self.connected:
            return []
        first = self.waiting[0]
        return first.after(self._written) if self._written else first.parts

    def wrote(self, count: int) -> bool:
        """``count`` bytes of :meth:`pending` were written. Return whether they were all."""
        frame = self.waiting[0]
        if count and not self._written and frame.work is not None:
            self._reached.add(frame.work)
        self._written += count
        if self._written < frame.nbytes:
            frame.own()
            return False
        self.waiting.popleft()
        self._waiting_bytes -= frame.nbytes
        self._written = 0
        return True

    @property
    def is_behind(self) -> bool:
        """Back-pressure: true while its senders must wait."""
        return len(self.waiting) > BACKLOG_MESSAGES or self._waiting_bytes > BACKLOG_BYTES

    def forget(self, request_id: str) -> None:
        """Drop what waits for a request that is over. A frame that is half written has to be finished."""
        if not self.waiting:
            return
        first = [self.waiting[0]] if self._written else []
        rest = list(self.waiting)[len(first) :]
        kept = [frame for frame in rest if frame.work is None or frame.work[0] != request_id]
        if len(kept) < len(rest):
            self.waiting = deque([*first, *kept])
            self._waiting_bytes = sum(frame.nbytes for frame in self.waiting)

    def up(self) -> None:
        """There is a connection; one that was given up is there again."""
        self.connected = True
        self._failure = None

    def closed(self) -> None:
        """The connection has ended. A frame that was written in part waits for the next connection, in full."""
        self.connected = False
        self._written = 0

    def down(self) -> list[Work]:
        """The peer's process has died. What waits is its successor's; the work of which something was written to it is returned."""
        self.closed()
        reached = [*self._reached, *(self._asked_about - self._reached)]
        self._reached, self._asked_about = set(), set()
        return reached

    def fail(self, error: OmniError) -> list[Work]:
        """Nothing reads what is sent: :meth:`push` raises ``error`` until there is a connection again. The work that waited is returned."""
        self.closed()
        self._failure = error
        waiting = [frame.work for frame in self.waiting if frame.work is not None]
        self.waiting.clear()
        self._waiting_bytes = 0
        return waiting

    @property
    def must_ask(self) -> bool:
        """True if so much was recorded that the owner must call :meth:`ask`."""
        return len(self._reached) >= self._ask_at

    def ask(self) -> None:
        """The owner asks now which requests are in flight; :meth:`keep` gets the answer."""
        self._asked_about |= self._reached
        self._reached = set()

    def keep(self, in_flight: Collection[str]) -> None:
        """Of the work recorded before :meth:`ask`, forget all but that of these requests.

        Later work is kept: its requests may have begun after the answer was given.
        """
        still = {work for work in self._asked_about if work[0] in in_flight}
        self._reached |= still
        self._asked_about = set()
        self._ask_at = max(ASK_AFTER, 2 * len(self._reached))
