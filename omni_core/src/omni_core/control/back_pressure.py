"""Bounds on streams: what of each one waits for its reader, and when its writer must wait. No IO."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from attrs import define, field

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
