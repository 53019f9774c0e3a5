"""Admission: who runs, who waits, who is refused. Keys share the pipeline fairly, and each has limits of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from attrs import define

from omni_serve.auth import Key, KeyLimits, KeyRing
from omni_serve.errors import ApiError
from omni_serve.fair_queue import FairQueue
from omni_serve.rate_limits import Budgets
from omni_serve.settings import Settings


@define
class _Account:
    """The usage of a key so far, and the limits that it is measured by."""

    limits: KeyLimits
    budgets: Budgets
    held: int = 0


class Admission:
    """Lets requests into the pipeline: at most ``settings.concurrent`` at once, the next one by fair queuing over keys."""

    def __init__(
        self, settings: Settings, keys: KeyRing | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._keys = keys or KeyRing()
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(settings.concurrent)
        self._accounts: dict[str, _Account] = {}
        self.draining = False
        self.sessions: set[asyncio.Task[Any]] = set()
        """Those of WebSockets, which may be idle."""
        self._idle: asyncio.Future[None] | None = None

    @property
    def running(self) -> int:
        """Return the number of requests in the pipeline."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """Return the number of requests in the queue."""
        return self._queue.waiting

    @property
    def key_share(self) -> float:
        """Return the part of what there is that one key may have: all of it where there are no others."""
        return 1.0 if len(self._keys.keys) < 2 else self._settings.limits.key_share

    def hold(self, key: Key) -> bool:
        """Count a request as in progress before its body is read; ``False`` if the key has no limit of that, else :meth:`release` it.

        Raises:
            ApiError: 429, the key has as many in progress as it may.
        """
        if key.limits.concurrent is None:
            return False
        account = self._account(key)
        if account.held >= key.limits.concurrent:
            raise ApiError(
                429,
                f"The key {key.name!r} has {account.held} requests in progress, its limit.",
                code="concurrent_requests_exceeded",
                retry_after=1,
            )
        account.held += 1
        return True

    def release(self, key: Key) -> None:
        """End what :meth:`hold` has counted."""
        self._account(key).held -= 1

    def admit(self, key: Key, *, held: bool = False) -> Place:
        """Return a place for a request, to be entered by ``async with``.

        Args:
            held: :meth:`hold` has counted it already.

        Raises:
            ApiError: 429 for a limit of the key or a full queue, 503 while the server drains.
        """
        if self.draining:
            raise self.shutting_down()
        self.budgets(key).check(key.name, ("tokens", "audio-seconds"), self._clock())
        queued = self._settings.queued
        is_full = self._queue.waiting >= queued or self._queue.waiting_of(key.name) >= queued * self.key_share
        if is_full and (self._queue.running >= self._queue.room or self._queue.of_key[key.name] >= self._most_of_key):
            raise ApiError(429, "The server has as many requests as it may hold.", code="overloaded", retry_after=1)
        return Place(self, key, not held and self.hold(key))

    @staticmethod
    def shutting_down() -> ApiError:
        """Return the error of requests that the server does not run any more."""
        return ApiError(503, "The server is shutting down.", code="draining", retry_after=5)

    def count(self, key: Key) -> None:
        """Count a request of a key, before its body is read.

        Raises:
            ApiError: 429, it has sent too many.
        """
        now, budgets = self._clock(), self.budgets(key)
        budgets.check(key.name, ("requests",), now)
        budgets.take("requests", 1.0, now)

    def charge(self, key: Key, tokens: int, audio_seconds: float) -> None:
        """Count tokens, and sound that was made or written down, for a key."""
        now, budgets = self._clock(), self.budgets(key)
        budgets.take("tokens", tokens, now)
        budgets.take("audio-seconds", audio_seconds, now)

    def budgets(self, key: Key) -> Budgets:
        """Return what is left of a key's limits per minute."""
        return self._account(key).budgets

    def rate_headers(self, key: Key) -> list[tuple[bytes, bytes]]:
        """Return the headers that tell it."""
        return self.budgets(key).headers(self._clock())

    def rate_limits(self, key: Key) -> list[dict[str, Any]]:
        """Return the same for an event of a session."""
        return self.budgets(key).as_event(self._clock())

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and wait for the running ones. Returns false if some still run after ``seconds``."""
        self.draining = True
        if self._queue.running or self._queue.waiting:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=seconds)
        return not (self._queue.running or self._queue.waiting)

    async def end_sessions(self, seconds: float) -> None:
        """End the sessions of WebSockets, each of which tells its client why, within so many seconds."""
        self.draining = True
        for each in self.sessions:
            each.cancel()
        if self.sessions:
            await asyncio.wait(self.sessions, timeout=seconds)

    def _account(self, key: Key) -> _Account:
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = _Account(key.limits, Budgets.of(key.limits))
        elif account.limits is not key.limits and account.limits != key.limits:  # the file of keys was read again
            account.limits, account.budgets = key.limits, Budgets.of(key.limits)
        return account

    @property
    def _most_of_key(self) -> int:
        """Return the places in the pipeline that one key may have."""
        return max(1, int(self._queue.room * self.key_share))

    async def _enter(self, key: Key) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._queue.enter(key.name, key.limits.share, turn, self._most_of_key):
            return
        try:
            async with asyncio.timeout(self._settings.queue_seconds):
                await turn
        except BaseException as error:
            # Its turn may have come in the same moment; a turn that was cancelled before has been passed on by _leave.
            if not self._queue.give_up(key.name, turn) and not turn.cancelled():
                self._leave(key)
            if isinstance(error, TimeoutError):
                raise ApiError(
                    503,
                    f"The request has waited {self._settings.queue_seconds:g} s for its turn.",
                    code="queue_timeout",
                    retry_after=5,
                ) from None
            raise

    def _leave(self, key: Key) -> None:
        following = self._queue.leave(key.name)
        while following is not None and following[1].done():
            following = self._queue.leave(following[0])
        if following is not None:
            following[1].set_result(None)
        elif self._idle is not None and not self._queue.running and not self._idle.done():
            self._idle.set_result(None)


@define(eq=False)
class Place:
    """A place in the pipeline, or in the queue before it."""

    _admission: Admission
    _key: Key
    _held: bool

    async def __aenter__(self) -> Self:
        try:
            await self._admission._enter(self._key)
        except BaseException:
            self._release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._release()
        self._admission._leave(self._key)

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._admission.release(self._key)
