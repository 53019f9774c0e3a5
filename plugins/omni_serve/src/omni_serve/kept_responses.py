"""Earlier responses by id, which ``previous_response_id`` goes on from: bounded in number, bytes and time.

A response keeps what was said since the one before it, so that a conversation is in memory once, however many of its responses are named.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

from attrs import define, field

VALUE_BYTES = 100
"""About what a value or a key of JSON takes beside its text."""


def weigh(items: Any) -> tuple[int, int]:
    """Return the number of values in JSON, keys included, and about how many bytes they take."""
    values = size = 0
    rest = [items]
    while rest:
        value = rest.pop()
        values += 1
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            rest += [*value, *value.values()]
        elif isinstance(value, list):
            rest += value
    return values, size + VALUE_BYTES * values


@define(eq=False)
class Turn:
    """The items of one response and its request.

    Attributes:
        owner: the name of the key.
        items: what its request has added to the conversation, and what it was answered with.
        before: the turn that it goes on from.
        session: by which replicas that hold the conversation's caches are found.
        values, size: of the whole conversation up to here, see :func:`weigh`.
    """

    owner: str
    items: Sequence[Any]
    before: Turn | None
    session: str
    values: int = field(init=False)
    size: int = field(init=False)
    own_size: int = field(init=False)
    until: float = field(default=0.0, init=False)
    holders: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.values, self.own_size = weigh(self.items)
        self.size = self.own_size
        if self.before is not None:
            self.values += self.before.values
            self.size += self.before.size

    @property
    def conversation(self) -> list[Any]:
        """All items up to here."""
        found: list[Sequence[Any]] = []
        turn: Turn | None = self
        while turn is not None:
            found.append(turn.items)
            turn = turn.before
        return [item for items in reversed(found) for item in items]


@define(eq=False)
class KeptResponses:
    """Keeps responses for ``seconds`` after their last use, at most ``most`` of them with ``most_bytes``; each is found with the key that
    it was made for. When there is no room, the key that has the most loses its oldest.
    """

    seconds: float
    most: int
    most_bytes: int
    size: int = field(default=0, init=False)
    _kept: dict[str, OrderedDict[str, Turn]] = field(factory=dict, init=False)
    _sizes: Counter[str] = field(factory=Counter, init=False)

    def keep(self, identity: str, turn: Turn) -> None:
        """Keep a finished response."""
        turn.until = time.time() + self.seconds
        self._kept.setdefault(turn.owner, OrderedDict())[identity] = turn
        turn.holders += 1
        self._count(turn.owner, turn.own_size)
        if turn.before is not None:
            self._hold(turn.before)
        self._expire()
        while sum(map(len, self._kept.values())) > self.most:
            self._drop(max(self._kept, key=lambda owner: len(self._kept[owner])))
        while self.size > self.most_bytes:
            self._drop(max(self._kept, key=self._sizes.__getitem__))

    def find(self, identity: str, owner: str) -> Turn | None:
        """Return a response; ``None`` if there is none of this id for this owner, or it has expired."""
        self._expire()
        kept = self._kept.get(owner)
        if kept is None or identity not in kept:
            return None
        kept.move_to_end(identity)
        kept[identity].until = time.time() + self.seconds
        return kept[identity]

    def delete(self, identity: str, owner: str) -> bool:
        """Forget a response. Those that go on from it keep what they need of it."""
        found = self.find(identity, owner) is not None
        if found:
            self._drop(owner, identity)
        return found

    def clear(self) -> int:
        """Forget all; return how many there were."""
        count = 0
        while self._kept:
            self._drop(next(iter(self._kept)))
            count += 1
        return count

    def _expire(self) -> None:
        now = time.time()
        for owner in list(self._kept):
            while (kept := self._kept.get(owner)) and next(iter(kept.values())).until <= now:
                self._drop(owner)

    def _hold(self, turn: Turn) -> None:
        """Note that another turn goes on from this one; one that was forgotten meanwhile counts again, with those before it."""
        before: Turn | None = turn
        while before is not None:
            before.holders += 1
            if before.holders > 1:
                return
            self._count(before.owner, before.own_size)
            before = before.before

    def _drop(self, owner: str, identity: str | None = None) -> None:
        """Forget a response of an owner, by default the oldest, and those before it that nothing else needs."""
        kept = self._kept[owner]
        turn: Turn | None = kept.popitem(last=False)[1] if identity is None else kept.pop(identity)
        if not kept:
            del self._kept[owner]
        while turn is not None:
            turn.holders -= 1
            if turn.holders:
                return
            self._count(owner, -turn.own_size)
            turn = turn.before

    def _count(self, owner: str, size: int) -> None:
        self.size += size
        self._sizes[owner] += size
        if not self._sizes[owner]:
            del self._sizes[owner]
