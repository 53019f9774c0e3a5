"""Room of a fixed size that requests of several keys share, as state without IO: events in, decisions out."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from attrs import define, field

T = TypeVar("T")


@define
class FairRoom(Generic[T]):
    """Hands out room to keys; of those that wait, the one that holds least goes first, in proportion to its share.

    A request that waits is not overtaken by a smaller one for ever: where there is too little room for the next one, nobody gets any.

    Attributes:
        size: all room.
        most: what one key may hold, so that it cannot take everything before others come; no request is larger.
    """

    size: float
    most: float
    _held: dict[str, float] = field(factory=dict)
    _lines: dict[str, deque[tuple[float, float, T]]] = field(factory=dict)

    @property
    def held(self) -> float:
        """Return the room that is taken."""
        return sum(self._held.values())

    @property
    def waiting(self) -> int:
        """Return how many requests wait."""
        return sum(map(len, self._lines.values()))

    def enter(self, key: str, share: float, amount: float, request: T) -> None:
        """Let a request wait for an amount of room, which :meth:`next` gives it."""
        self._lines.setdefault(key, deque()).append((min(amount, self.most), share, request))

    def next(self) -> T | None:
        """Return a request that has got its room now, or ``None``. Ask again until there is none."""
        for key in sorted(self._lines, key=self._rank):
            amount, _, request = self._lines[key][0]
            if self._held.get(key, 0.0) + amount > self.most + _ROUNDING:
                continue  # it waits for its own requests
            if self.held + amount > self.size + _ROUNDING:
                return None
            self._held[key] = self._held.get(key, 0.0) + amount
            self._drop(key, 0)
            return request
        return None

    def give_up(self, key: str, request: T) -> bool:
        """Remove a waiting request. Returns false if it does not wait any more."""
        for index, (_, _, each) in enumerate(self._lines.get(key, ())):
            if each is request:
                self._drop(key, index)
                return True
        return False

    def leave(self, key: str, amount: float) -> None:
        """Give room back."""
        left = self._held[key] - min(amount, self.most)
        if left > _ROUNDING:
            self._held[key] = left
        else:
            del self._held[key]

    def _rank(self, key: str) -> float:
        _, share, _ = self._lines[key][0]
        return self._held.get(key, 0.0) / share

    def _drop(self, key: str, index: int) -> None:
        del self._lines[key][index]
        if not self._lines[key]:
            del self._lines[key]


_ROUNDING = 1e-9
