"""Limit what a key may have per minute, requests, tokens and seconds of sound, and tell clients what is left.

A state machine without IO: amounts and times in, decisions and headers out. OpenAI has names for headers of requests and tokens; those
of seconds of sound are the ones that other servers of its API send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attrs import define

from omni_serve.auth import KeyLimits
from omni_serve.errors import ApiError
from omni_serve.fair_queue import Bucket

_KINDS = {
    "requests": (1.0, "send {} requests"),
    "tokens": (1.0, "have {} tokens"),
    "audio-seconds": (0.001, "have {} seconds of sound"),
}
"""By the names in headers: what must be left for one more request, and the words of the error."""

HEADERS = tuple(f"x-ratelimit-{what}-{kind}" for kind in _KINDS for what in ("limit", "remaining", "reset"))


@define
class Budgets:
    """Count what is left of a key's limits per minute. Tokens and seconds, which are known only afterwards, may overdraw them."""

    _buckets: dict[str, Bucket]

    @classmethod
    def of(cls, limits: KeyLimits) -> Budgets:
        """Return the full budgets of a key: one for each limit that it has."""
        most = (limits.requests_per_minute, limits.tokens_per_minute, limits.audio_seconds_per_minute)
        return cls({kind: Bucket(each) for kind, each in zip(_KINDS, most, strict=True) if each})

    def check(self, key: str, kinds: Sequence[str], now: float) -> None:
        """Raise ApiError 429 if nothing is left of one of ``kinds``."""
        for kind in kinds:
            bucket = self._buckets.get(kind)
            if bucket is None:
                continue
            needed, words = _KINDS[kind]
            if wait := bucket.wait(needed, now):
                raise ApiError(
                    429,
                    f"The key {key!r} may {words.format(f'{bucket.per_minute:g}')} a minute.",
                    code="rate_limit_exceeded",
                    retry_after=wait,
                )

    def take(self, kind: str, amount: float, now: float) -> None:
        """Take an amount of one of them."""
        if bucket := self._buckets.get(kind):
            bucket.take(amount, now)

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """Return what answers tell: whole numbers, rounded down, and the time until the budget is full, as ``6m0s``."""
        made = []
        for kind, bucket in self._buckets.items():
            values = (str(int(bucket.per_minute)), str(_left(bucket, now)), _duration(_until_full(bucket, now)))
            for what, value in zip(("limit", "remaining", "reset"), values, strict=True):
                made.append((f"x-ratelimit-{what}-{kind}".encode(), value.encode()))
        return made

    def as_event(self, now: float) -> list[dict[str, Any]]:
        """Return what events of realtime sessions tell, which know requests and tokens only."""
        return [
            {
                "name": kind,
                "limit": int(bucket.per_minute),
                "remaining": _left(bucket, now),
                "reset_seconds": round(_until_full(bucket, now), 3),
            }
            for kind, bucket in self._buckets.items()
            if kind != "audio-seconds"
        ]


def _until_full(bucket: Bucket, now: float) -> float:
    return bucket.wait(bucket.per_minute, now)


def _left(bucket: Bucket, now: float) -> int:
    bucket.wait(0.0, now)
    return max(0, math.floor(bucket.level))


def _duration(seconds: float) -> str:
    """Return a time as OpenAI writes it: ``12ms``, ``1.5s``, ``6m0s``."""
    thousandths = math.ceil(seconds * 1000)
    if 0 < thousandths < 1000:
        return f"{thousandths}ms"
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
