"""A budget of memory that the keys of a server share: no key gets all of it."""

from __future__ import annotations

from collections import Counter

from attrs import define, field


@define(eq=False)
class Room:
    """Counts the bytes that are held, by the name of the key they are held for. One key has half of ``most`` at most."""

    most: int
    used: int = 0
    _by_key: Counter[str] = field(factory=Counter, init=False)

    def has(self, key: str, size: int) -> bool:
        """Return whether there is room for so many more bytes."""
        return self.used + size <= self.most and self._by_key[key] + size <= self.most // 2

    def add(self, key: str, size: int) -> None:
        """Count bytes that are held from now on, or of a negative number, not any more."""
        self.used += size
        self._by_key[key] += size
        if not self._by_key[key]:
            del self._by_key[key]
