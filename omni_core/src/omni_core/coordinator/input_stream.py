"""The input of a request that comes as a stream, with back-pressure: what was sent of it, and what its entry stage has taken. No IO.

A chunk is a credit in use until the stage's scheduler has taken it. A stage that takes nothing, or whose outputs wait, gives none back,
so the sender waits.
"""

from __future__ import annotations

import asyncio
from collections import deque

from attrs import define, field

from omni_core.control.back_pressure import MOST_INPUT_BYTES, MOST_INPUT_CHUNKS


@define
class InputStream:
    """The state of one request's input.

    Attributes:
        chunk_timeout: seconds in which the entry stage must take each chunk, or ``None``.
        is_ready: the request itself was sent to the entry stage, so that chunks may follow it.
        is_finished: the client has sent its last chunk.
        is_unwanted: the entry stage has ended the request before its input; further chunks are dropped.
        sent: number of chunks that were sent.
        taken: number of chunks that the entry stage has taken.
        is_late: the oldest chunk that is not taken was not taken in time.
        is_watched: a timer looks at the oldest chunk.
        waiter: resolved by the asyncio shell when the sender may look again.
    """

    chunk_timeout: float | None = None
    is_ready: bool = False
    is_finished: bool = False
    is_unwanted: bool = False
    sent: int = 0
    taken: int = 0
    is_late: bool = False
    is_watched: bool = False
    waiter: asyncio.Future[None] | None = None
    _waiting: deque[tuple[int, float]] = field(factory=deque)
    """The chunks that are not taken: the size of each, and when it was sent."""
    _nbytes: int = 0

    @property
    def has_begun(self) -> bool:
        """True once a part of it was sent, which is kept nowhere: the request cannot run again."""
        return self.sent > 0 or self.is_finished

    @property
    def has_room(self) -> bool:
        """True if a chunk may be sent now. One chunk is, however large."""
        if self.is_unwanted:
            return True
        if not self.is_ready or len(self._waiting) >= MOST_INPUT_CHUNKS:
            return False
        return self._nbytes < MOST_INPUT_BYTES or not self._waiting

    @property
    def progress(self) -> str:
        """The consumed part of it, for a message."""
        return f"{self.taken} of {self.sent} chunks of its input were taken"

    @property
    def next_due(self) -> float | None:
        """The time by which the oldest chunk must be taken."""
        if self.chunk_timeout is None or self.is_unwanted or not self._waiting:
            return None
        return self._waiting[0][1] + self.chunk_timeout

    @property
    def waiting(self) -> int:
        """Number of chunks that were sent and are not taken."""
        return len(self._waiting)

    def put(self, nbytes: int, now: float) -> int:
        """Count a chunk. Returns its number, from 0."""
        self._waiting.append((nbytes, now))
        self._nbytes += nbytes
        self.sent += 1
        return self.sent - 1

    def take(self, count: int) -> None:
        """Count ``count`` chunks, the oldest, as taken."""
        for _ in range(min(count, len(self._waiting))):
            self._nbytes -= self._waiting.popleft()[0]
            self.taken += 1
