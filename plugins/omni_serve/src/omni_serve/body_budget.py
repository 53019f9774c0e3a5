"""The bytes of bodies that all requests in progress hold together: a limit for each of them says nothing of their sum."""

from __future__ import annotations

import asyncio
from collections import Counter

from attrs import define, field

from omni_serve.errors import ApiError
from omni_serve.limits import Admission
from omni_serve.settings import Limits

FREE_BYTES = 64 * 1024
"""A body up to this size never waits."""

WAIT_SECONDS = 30.0
"""The longest time that a body waits for room; nothing of it is read meanwhile."""


@define(eq=False)
class BodyBudget:
    """Counts the bytes of bodies by key. A whole body fits in always, if there is no other.

    Attributes:
        held: bytes.
    """

    _admission: Admission
    _limits: Limits
    held: int = 0
    of_key: Counter[str] = field(factory=Counter)
    _waiting: list[tuple[str, int, asyncio.Future[None]]] = field(factory=list)

    def has_room(self, key: str, size: int) -> bool:
        """Return whether ``size`` bytes more of a key fit in."""
        body = self._limits.body_mib * 2**20
        most = max(self._limits.bodies_mib * 2**20, body)
        of_key = max(most * self._admission.key_share, body)
        return self.held + size <= most and self.of_key[key] + size <= of_key

    def take(self, key: str, size: int) -> None:
        """Count ``size`` bytes more. Raises ApiError 503 if there is no room for them."""
        if not self.has_room(key, size):
            raise ApiError(
                503,
                "The bodies of requests in progress take as much memory as they may (bodies_mib); send this one again later.",
                code="overloaded",
                retry_after=2,
            )
        self.held += size
        self.of_key[key] += size

    async def wait(self, key: str, size: int) -> None:
        """Count ``size`` bytes more, as soon as there is room for them. Raises ApiError 503 if there is none in time."""
        if not self.has_room(key, size):
            turn = (key, size, asyncio.get_running_loop().create_future())
            self._waiting.append(turn)
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await turn[2]
                return
            except (TimeoutError, asyncio.CancelledError) as error:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self.give_back(key, size)
                if not isinstance(error, TimeoutError):
                    raise
        self.take(key, size)

    def give_back(self, key: str, size: int) -> None:
        """Count ``size`` bytes no more; the first of those that wait and fit in get them."""
        self.held -= size
        self.of_key[key] -= size
        if not self.of_key[key]:
            del self.of_key[key]
        for turn in [*self._waiting]:
            if self.has_room(*turn[:2]):
                self._waiting.remove(turn)
                self.take(*turn[:2])
                turn[2].set_result(None)


@define(eq=False)
class Held:
    """The part of the budget that one request holds.

    Attributes:
        is_live: the body comes at the pace at which it is spoken: there is a limit on the time of each piece, and not of all.
    """

    _budget: BodyBudget
    key: str = ""
    size: int = 0
    is_live: bool = False
    _ahead: int = 0

    async def wait(self, size: int) -> None:
        """Hold the bytes of a body that is about to come, as soon as there is room for them. Raises ApiError 503."""
        if size > FREE_BYTES:
            await self._budget.wait(self.key, size)
            self.size += size
            self._ahead = size

    def take(self, size: int) -> None:
        """Hold ``size`` bytes that have come, if :meth:`wait` has not done so. Raises ApiError 503."""
        new = max(0, size - self._ahead)
        self._ahead -= size - new
        if new:
            self._budget.take(self.key, new)
            self.size += new

    def give_back(self) -> None:
        """Hold nothing more."""
        if self.size:
            self._budget.give_back(self.key, self.size)
            self.size = 0
