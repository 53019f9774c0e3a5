"""Admission: who runs, who waits, who is refused. Keys share the pipeline fairly, and each has limits of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from attrs import define, field

from omni_serve.auth import Key
from omni_serve.errors import ApiError
from omni_serve.fair_queue import Bucket, FairQueue
from omni_serve.settings import Settings

_AUDIO_MARGIN = 0.001


@define
class _Account:
    """What a key has used."""

    held: int = 0
    requests: Bucket | None = None
    audio: Bucket | None = None


class Admission:
    """Lets requests into the pipeline: at most ``settings.concurrent`` at once, the next one by fair queuing over keys."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(settings.concurrent)
        self._accounts: dict[str, _Account] = {}
        self.draining = False
        self._idle: asyncio.Future[None] | None = None

    @property
    def running(self) -> int:
        """Return the number of requests in the pipeline."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """Return the number of requests in the queue."""
        return self._queue.waiting

    def admit(self, key: Key) -> Place:
        """Return a place for a request, to be entered by ``async with``.

        Raises:
            ApiError: 429 for a limit of the key or a full queue, 503 while the server drains.
        """
        if self.draining:
            raise ApiError(503, "The server is shutting down.", code="draining", retry_after=5)
        now, account = self._clock(), self._account(key)
        limits = key.limits
        if limits.concurrent is not None and account.held >= limits.concurrent:
            raise ApiError(
                429,
                f"The key {key.name!r} has {account.held} requests in progress, its limit.",
                code="concurrent_requests_exceeded",
                retry_after=1,
            )
        if account.audio is not None and (wait := account.audio.wait(_AUDIO_MARGIN, now)):
            raise ApiError(
                429,
                f"The key {key.name!r} may have {limits.audio_seconds_per_minute:g} seconds of speech a minute.",
                code="rate_limit_exceeded",
                retry_after=wait,
            )
        if self._queue.running >= self._queue.room and self._queue.waiting >= self._settings.queued:
            raise ApiError(429, "The server has as many requests as it may hold.", code="overloaded", retry_after=1)
        return Place(self, key, account)

    def count(self, key: Key) -> None:
        """Count a request of a key, before its body is read.

        Raises:
            ApiError: 429, it has sent too many.
        """
        now, account = self._clock(), self._account(key)
        if account.requests is None:
            return
        if wait := account.requests.wait(1.0, now):
            raise ApiError(
                429,
                f"The key {key.name!r} may send {key.limits.requests_per_minute:g} requests a minute.",
                code="rate_limit_exceeded",
                retry_after=wait,
            )
        account.requests.take(1.0, now)

    def charge(self, key: Key, audio_seconds: float) -> None:
        """Count speech that was made for a key."""
        account = self._account(key)
        if account.audio is not None:
            account.audio.take(audio_seconds, self._clock())

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and wait for the running ones. Returns false if some still run after ``seconds``."""
        self.draining = True
        if self._queue.running or self._queue.waiting:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=seconds)
        return not (self._queue.running or self._queue.waiting)

    def _account(self, key: Key) -> _Account:
        account = self._accounts.get(key.name)
        if account is None:
            requests, audio = key.limits.requests_per_minute, key.limits.audio_seconds_per_minute
            account = _Account(0, Bucket(requests) if requests else None, Bucket(audio) if audio else None)
            self._accounts[key.name] = account
        return account

    async def _enter(self, key: Key, account: _Account) -> None:
        account.held += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._queue.enter(key.name, key.limits.share, turn):
            return
        try:
            async with asyncio.timeout(self._settings.queue_seconds):
                await turn
        except BaseException as error:
            account.held -= 1
            # Its turn may have come in the same moment; a turn that was cancelled before has been passed on by _leave.
            if not self._queue.give_up(key.name, turn) and not turn.cancelled():
                self._leave()
            if isinstance(error, TimeoutError):
                raise ApiError(
                    503,
                    f"The request has waited {self._settings.queue_seconds:g} s for its turn.",
                    code="queue_timeout",
                    retry_after=5,
                ) from None
            raise

    def _leave(self) -> None:
        following = self._queue.leave()
        while following is not None and following.done():
            following = self._queue.leave()
        if following is not None:
            following.set_result(None)
        elif self._idle is not None and not self._queue.running and not self._idle.done():
            self._idle.set_result(None)


@define(eq=False)
class Place:
    """A place in the pipeline, or in the queue before it."""

    _admission: Admission
    _key: Key
    _account: _Account = field(repr=False)

    async def __aenter__(self) -> Self:
        await self._admission._enter(self._key, self._account)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._account.held -= 1
        self._admission._leave()
