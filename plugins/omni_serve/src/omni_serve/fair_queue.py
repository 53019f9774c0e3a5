"""Choose the waiting request that runs next, by start-time fair queuing over keys, without IO. Time and events in, decisions out."""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

from attrs import define, field

T = TypeVar("T")


@define
class _Line(Generic[T]):
    """The waiting requests of one key. ``turn``: its virtual time; the key with the smallest one is next. ``most``: its places."""

    share: float
    turn: float
    most: int
    waiting: deque[T] = field(factory=deque)


@define
class FairQueue(Generic[T]):
    """Hands out ``room`` places to keys in proportion to their shares, whatever each of them sends.

    A key that has waited gets no credit for the time before: its virtual time begins at that of the queue. What has just run
    for it still counts when it comes back: sending one request after the other gains nothing over the keys that wait.
    """

    room: int
    running: int = 0
    waiting: int = 0
    of_key: Counter[str] = field(factory=Counter)
    _now: float = 0.0
    _lines: dict[str, _Line[T]] = field(factory=dict)
    _ended: dict[str, float] = field(factory=dict)

    def enter(self, key: str, share: float, request: T, most: int) -> bool:
        """Take a request. Returns true if it runs at once; otherwise :meth:`leave` returns it when its turn has come.

        Args:
            most: the places that requests of this key may have at once.
        """
        # While there is room, a request waits only if its key has all the places that it may have.
        if self.running < self.room and self.of_key[key] < most:
            self._run(key)
            return True
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(share, max(self._now, self._ended.pop(key, 0.0)), most)
        line.most = most
        line.waiting.append(request)
        self.waiting += 1
        return False

    def give_up(self, key: str, request: T) -> bool:
        """Remove a waiting request. Returns false if it does not wait any more."""
        line = self._lines.get(key)
        if line is None or request not in line.waiting:
            return False
        line.waiting.remove(request)
        self.waiting -= 1
        self._forget(key, line)
        return True

    def waiting_of(self, key: str) -> int:
        """Return the number of waiting requests of a key."""
        line = self._lines.get(key)
        return len(line.waiting) if line is not None else 0

    def leave(self, key: str) -> tuple[str, T] | None:
        """Free a place of a key; return the request that gets it, after its key, or ``None``."""
        self.running -= 1
        self.of_key[key] -= 1
        if not self.of_key[key]:
            del self.of_key[key]
        lines = [each for each in self._lines.items() if self.of_key[each[0]] < each[1].most]
        if not lines or self.running >= self.room:
            return None
        key, line = min(lines, key=lambda item: item[1].turn)
        request = line.waiting.popleft()
        self.waiting -= 1
        self._run(key)
        self._now = line.turn
        line.turn += 1.0 / line.share
        self._forget(key, line)
        return key, request

    def _run(self, key: str) -> None:
        self.running += 1
        self.of_key[key] += 1

    def _forget(self, key: str, line: _Line[T]) -> None:
        """Drop an empty line; its virtual time is kept as long as it is ahead of the queue's."""
        if not line.waiting:
            del self._lines[key]
            self._ended[key] = line.turn
        for each in [each for each, turn in self._ended.items() if turn <= self._now]:
            del self._ended[each]


@define
class Bucket:
    """A budget that refills steadily, up to one minute's worth. It may be overdrawn, for what is known only afterwards."""

    per_minute: float
    level: float = field(init=False)
    _at: float | None = None

    def __attrs_post_init__(self) -> None:
        self.level = self.per_minute

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until ``amount`` is there; 0: now."""
        self._refill(now)
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing * 60.0 / self.per_minute)

    def take(self, amount: float, now: float) -> None:
        """Take ``amount``."""
        self._refill(now)
        self.level -= amount

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self.level = min(self.per_minute, self.level + (now - self._at) * self.per_minute / 60.0)
        self._at = now
