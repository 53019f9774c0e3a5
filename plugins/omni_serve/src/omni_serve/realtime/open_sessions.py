"""Keep what the realtime sessions of a server share: their number, and the configurations that short-lived keys bring with them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from omni_serve.auth import LENT, digest
from omni_serve.errors import ApiError
from omni_serve.room import Room
from omni_serve.settings import RealtimeLimits


@define(eq=False)
class OpenSessions:
    """The sessions of a server, by the name of their key. ``memory``: what their conversations keep, and the sound that waits."""

    memory: Room = field(factory=lambda: Room(2**31))
    count: int = 0
    _by_key: Counter[str] = field(factory=Counter)
    _configs: dict[str, tuple[float, dict[str, Any], str]] = field(factory=dict, repr=False)

    @contextmanager
    def enter(self, key: str, limits: RealtimeLimits) -> Iterator[None]:
        """Count a session while it lasts. Raises ApiError 429: there are too many."""
        if self.count >= limits.sessions:
            raise ApiError(429, "The server has as many sessions as it may hold.", code="overloaded", retry_after=5)
        if self._by_key[key] >= limits.sessions_per_key:
            raise ApiError(
                429,
                f"The key {key!r} has {self._by_key[key]} sessions, its limit.",
                code="concurrent_sessions_exceeded",
                retry_after=5,
            )
        self.count += 1
        self._by_key[key] += 1
        try:
            yield
        finally:
            self.count -= 1
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]

    def keep(self, secret: str, expires: float, config: dict[str, Any], owner: str) -> None:
        """Keep the configuration that belongs to a short-lived key; of too many of an owner's, the oldest goes."""
        now = time.time()
        for each in [each for each, (until, *_) in self._configs.items() if until <= now]:
            del self._configs[each]
        mine = [each for each, (*_, name) in self._configs.items() if name == owner]
        for each in mine[: max(0, len(mine) + 1 - LENT)]:
            del self._configs[each]
        self._configs[digest(secret)] = (expires, config, owner)

    def config_of(self, secret: str | None) -> dict[str, Any]:
        """Return the configuration of a key; empty if it has none."""
        expires, config, _ = self._configs.get(digest(secret or ""), (0.0, {}, ""))
        return config if expires > time.time() else {}
