"""Requests with media wait until there is room for what is made of them: all that are decoded at once have one budget."""

from __future__ import annotations

import asyncio

from attrs import define

from omni_serve.auth import Key
from omni_serve.errors import ApiError
from omni_serve.fair_room import FairRoom
from omni_serve.settings import Settings


class MediaRoom:
    """Room for ``limits.media_requests`` requests with all the media that one may have; a key may take half of it.

    Requests without media take none, and wait for none.
    """

    def __init__(self, settings: Settings) -> None:
        most = settings.limits.media_requests
        self._settings = settings
        self._room: FairRoom[asyncio.Future[None]] = FairRoom(most, max(most / 2, 1.0))

    @property
    def held(self) -> float:
        """Return the room that is taken."""
        return self._room.held

    @property
    def waiting(self) -> int:
        """Return how many requests wait for room."""
        return self._room.waiting

    async def take(self, key: Key, amount: float) -> MediaPlace:
        """Wait for room and take it. :meth:`MediaPlace.leave` gives it back.

        Args:
            amount: as a part of what one request may have; 0: no media.

        Raises:
            ApiError: 429, too many wait; 503, it has waited for too long.
        """
        if not amount:
            return MediaPlace(self, key.name, 0.0)
        if self._room.waiting >= self._settings.queued:
            raise ApiError(429, "Too many requests with media wait here already.", code="overloaded", retry_after=5)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.enter(key.name, key.limits.share, amount, turn)
        self._hand_out()
        try:
            async with asyncio.timeout(self._settings.queue_seconds):
                await turn
        except BaseException as error:
            if not self._room.give_up(key.name, turn):  # its turn came in the same moment
                self._room.leave(key.name, amount)
            self._hand_out()
            if isinstance(error, TimeoutError):
                raise ApiError(
                    503,
                    f"The media of the request have waited {self._settings.queue_seconds:g} s for those of others to be read.",
                    code="queue_timeout",
                    retry_after=5,
                ) from None
            raise
        return MediaPlace(self, key.name, amount)

    def give_back(self, key: str, amount: float) -> None:
        """End what :meth:`take` has taken."""
        self._room.leave(key, amount)
        self._hand_out()

    def _hand_out(self) -> None:
        while (turn := self._room.next()) is not None:
            if not turn.done():  # one that was cancelled gives its room back by itself
                turn.set_result(None)


@define(eq=False)
class MediaPlace:
    """Room that a request holds until its media have been read."""

    _room: MediaRoom
    _key: str
    _amount: float

    def leave(self) -> None:
        """Give the room back. Idempotent."""
        amount, self._amount = self._amount, 0.0
        if amount:
            self._room.give_back(self._key, amount)
