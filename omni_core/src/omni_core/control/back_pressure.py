"""Back-pressure: the bounds on what may wait, and :class:`Backlog`, which says when the writer of a stream must wait. No IO.

A reader that falls behind makes its writer wait, step by step up to the client, whose further requests are refused at last
(``max_in_flight``). docs/how-a-request-flows.md lists the places in their order; a relay's pool has its bound in its own settings.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from attrs import define, field

BACKLOG_MESSAGES, BACKLOG_BYTES = 1_000, 4 * 2**20
"""Messages and bytes that may wait for one peer before its senders are asked to wait (see :meth:`ControlPlane.room`)."""

HIGH_WATER_MARK = 20_000
"""Messages that may wait for one peer. Admission bounds what is in flight; a peer this far behind is not reading."""

MOST_OUTPUTS, MOST_OUTPUT_BYTES = 32, 4 * 2**20
"""Outputs that may wait in a stage to be handed on; then its scheduler begins nothing new. So many of one request, or so many bytes of it,
may wait; then its scheduler makes no more of them.
"""

MOST_CHUNKS, MOST_CHUNK_BYTES = 256, 8 * 2**20
"""Chunks of one stream, or bytes of them, that may wait in a stage's inbox; then the stage that sends them is asked to wait."""

MOST_INPUT_CHUNKS, MOST_INPUT_BYTES = 64, 8 * 2**20
"""Chunks of a request's input, or bytes of them, that may be on their way to its entry stage or wait there; then the client waits."""

PAUSE_EVENTS, PAUSE_BYTES = 1_000, 8 * 2**20
"""Partial results that wait for one streaming client, or bytes of them; then its stages send no more, and go on at half of both."""

MAX_UNREAD_EVENTS = 10_000
"""Partial results that may wait for one streaming client before its request fails: its stages did not wait when they were told to."""

Key = TypeVar("Key", bound=Hashable)


@define
class _Waiting:
    sizes: deque[int] = field(factory=deque)
    nbytes: int = 0
    is_full: bool = False


class Backlog(Generic[Key]):
    """The items of each stream that wait, by count and bytes. From any thread; its lock is held for nothing else.

    A stream is full once it holds ``most`` items or ``most_bytes``, and has room again at half of both.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._streams: dict[Key, _Waiting] = {}
        self._lock = threading.Lock()

    def add(self, key: Key, nbytes: int) -> bool:
        """Add an item behind those that wait. Return whether the stream has become full."""
        with self._lock:
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = _Waiting()
            stream.sizes.append(nbytes)
            stream.nbytes += nbytes
            was_full = stream.is_full
            stream.is_full = was_full or len(stream.sizes) >= self._most or stream.nbytes >= self._most_bytes
            return stream.is_full and not was_full

    def take(self, key: Key) -> bool:
        """Take the first item, if the stream is known. Return whether the stream, which was full, has room again."""
        with self._lock:
            stream = self._streams.get(key)
            if stream is None:
                return False
            stream.nbytes -= stream.sizes.popleft()
            was_full = stream.is_full
            if 2 * len(stream.sizes) <= self._most and 2 * stream.nbytes <= self._most_bytes:
                stream.is_full = False
            if not stream.sizes:
                del self._streams[key]
            return was_full and not stream.is_full

    def end(self, key: Key) -> bool:
        """Forget a stream. Return whether it was full."""
        with self._lock:
            stream = self._streams.pop(key, None)
            return stream is not None and stream.is_full

    def is_full(self, key: Key) -> bool:
        stream = self._streams.get(key)
        return stream is not None and stream.is_full
