"""The check that a client's going away frees the server: probes are as fast as before."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from omni_serve.audit.subject import CHAT, IMAGES, SPEECH, Fault, Subject

_CLIENTS = 8
_LONG = "Please tell me a very long story about the sea, the ships, the people on them and what they found. " * 8


async def disconnects(subject: Subject) -> str:
    """Begin long requests, streamed and not, close them, and time short ones."""
    usual = sorted([await subject.timed_probe() for _ in range(3)])[1]
    allowed = usual * 5 + subject.grace
    await asyncio.gather(*(_leave(subject, whole=number % 2 == 1) for number in range(_CLIENTS)))
    try:
        after = await subject.timed_probe(timeout=allowed)
    except httpx2.TimeoutException:
        raise Fault(
            f"after {_CLIENTS} clients went away a short request takes above {allowed:.1f} s, before it took {usual:.3f} s"
        ) from None
    return f"a short request takes {usual * 1000:.0f} ms, after {_CLIENTS} clients went away {after * 1000:.0f} ms"


async def _leave(subject: Subject, *, whole: bool) -> None:
    """Begin a long request and close its connection: after the first piece, or, of one without pieces, soon."""
    path, body = _long(subject, stream=not whole)
    async with httpx2.AsyncClient(
        base_url=subject.remote.url, headers=subject.remote.http.headers, timeout=5
    ) as client:
        try:
            async with asyncio.timeout(0.3 if whole else 5), client.stream("POST", path, json=body) as answer:
                async for _ in answer.aiter_raw():
                    break
        except (TimeoutError, httpx2.TransportError):
            pass


def _long(subject: Subject, *, stream: bool) -> tuple[str, dict[str, Any]]:
    path, body = subject.any_request()
    if path == SPEECH:
        return path, {**body, "input": _LONG[:1500]}
    if path == IMAGES:
        return path, {**body, "stream": stream}
    return CHAT, {**body, "messages": [{"role": "user", "content": _LONG}], "stream": stream}
