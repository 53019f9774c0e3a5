"""Asynchronous tests without a pytest plugin, each with a time limit, which does not count the start of a pipeline."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Opened = TypeVar("Opened")

LIMIT_SECONDS = 60.0
_limit: ContextVar[asyncio.Timeout] = ContextVar("limit")


def driven(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test method run on an event loop of its own and fail after :data:`LIMIT_SECONDS`."""

    async def limited(self: Any) -> None:
        limit = asyncio.timeout(LIMIT_SECONDS)
        try:
            async with limit:
                _limit.set(limit)
                await function(self)
        except TimeoutError:
            if not limit.expired():  # it is of the test itself
                raise
            raise AssertionError(f"not done within {LIMIT_SECONDS:g} s (the start of a pipeline aside)") from None

    @functools.wraps(function)
    def test(self: Any) -> None:
        asyncio.run(limited(self))

    del test.__wrapped__  # pytest would see a coroutine function
    return test


@asynccontextmanager
async def started(opening: AbstractAsyncContextManager[Opened]) -> AsyncIterator[Opened]:
    """Enter ``opening`` within a :func:`driven` test, whose limit begins again then. Stages have a ``startup_timeout`` of their own."""
    limit = _limit.get()
    limit.reschedule(None)
    async with opening as client:
        limit.reschedule(asyncio.get_running_loop().time() + LIMIT_SECONDS)
        yield client
