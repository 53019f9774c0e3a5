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
        is_ready: the request itself was sent to the entry stage, so that chunks may follow it.
        is_finished: the client has sent its last chunk.
        is_unwanted: the entry stage has ended the request before its input; further chunks are dropped.
        sent: number of chunks that were sent.
        taken: number of chunks that the entry stage has taken.
        waiter: resolved by the asyncio shell when the sender may look again.
    """

    is_ready: bool = False
    is_finished: bool = False
    is_unwanted: bool = False
    sent: int = 0
    taken: int = 0
    waiter: asyncio.Future[None] | None = None
    _sizes: deque[int] = field(factory=deque)
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
        if not self.is_ready or len(self._sizes) >= MOST_INPUT_CHUNKS:
            return False
        return self._nbytes < MOST_INPUT_BYTES or not self._sizes

    def put(self, nbytes: int) -> int:
        """Count a chunk. Returns its number, from 0."""
        self._sizes.append(nbytes)
        self._nbytes += nbytes
        self.sent += 1
        return self.sent - 1

    def take(self, count: int) -> None:
        """Count ``count`` chunks, the oldest, as taken."""
        for _ in range(min(count, len(self._sizes))):
            self._nbytes -= self._sizes.popleft()
            self.taken += 1
