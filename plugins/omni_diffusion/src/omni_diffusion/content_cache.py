"""Results of an encoder by the content that they were made of, the latest ones."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def digest(*parts: bytes | str) -> bytes:
    """Return a cryptographic hash of texts and bytes, with their borders."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.digest()


class ContentCache(Generic[T]):
    """A cache bounded by the bytes of what it keeps; the least recently used goes first. For one thread.

    Args:
        max_bytes: 0 keeps nothing.
        size_of: bytes of a value.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[T], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._values: OrderedDict[bytes, T] = OrderedDict()
        self.nbytes = 0
        self.hits = self.misses = 0

    def get(self, key: bytes) -> T | None:
        """Return a value, and note its use."""
        value = self._values.get(key)
        if value is None:
            self.misses += 1
            return None
        self.hits += 1
        self._values.move_to_end(key)
        return value

    def put(self, key: bytes, value: T) -> None:
        """Keep a value, unless it alone is larger than the cache."""
        size = self._size_of(value)
        if key in self._values or size > self._max_bytes:
            return
        self._values[key] = value
        self.nbytes += size
        while self.nbytes > self._max_bytes:
            _, oldest = self._values.popitem(last=False)
            self.nbytes -= self._size_of(oldest)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self.nbytes = 0
