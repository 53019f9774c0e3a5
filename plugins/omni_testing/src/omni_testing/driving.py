"""Asynchronous tests without a pytest plugin, each with a time limit."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

LIMIT_SECONDS = 60.0


def driven(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test method run on an event loop of its own and fail after :data:`LIMIT_SECONDS`."""

    @functools.wraps(function)
    def test(self: Any) -> None:
        asyncio.run(asyncio.wait_for(function(self), LIMIT_SECONDS))

    del test.__wrapped__  # pytest would see a coroutine function
    return test
