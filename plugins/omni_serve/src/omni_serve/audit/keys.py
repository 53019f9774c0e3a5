"""The check that a key is asked for on every route, documented ones and WebSockets."""

from __future__ import annotations

import re

import httpx2
import websockets

from omni_serve.audit.errors import NO_SUCH
from omni_serve.audit.subject import Fault, NotOffered, Subject

SOCKETS = ("/v1/realtime?model=x", "/v1/live/sessions", "/v1/audio/speech/stream")
_OPEN = re.compile(r"/|/health.*|/livez|/readyz|/ping|/metrics")
"""Paths that may be open: probes of an orchestrator, the page. /metrics is named if it is."""

_METHODS = ("get", "post", "put", "patch", "delete")


async def key_coverage(subject: Subject) -> str:
    """Call every route without a key."""
    async with subject.remote.without_key() as anybody:
        if (await anybody.get("/v1/models")).status_code == 200:
            raise NotOffered("the server asks for no key")
        document = await subject.remote.http.get("/openapi.json")
        try:
            paths = document.json()["paths"] if document.status_code == 200 else None
        except (ValueError, KeyError, TypeError):
            paths = None
        if not isinstance(paths, dict):
            raise NotOffered("there is no /openapi.json to list the routes")
        count = 0
        leaks, public = list[str](), list[str]()
        for path, operations in paths.items():
            for method in operations:
                if method not in _METHODS:
                    continue
                status = await _status(anybody, method, path)
                count += 1
                if status not in (401, 403):
                    (public if _OPEN.fullmatch(path) else leaks).append(f"{method.upper()} {path} ({status})")
    for path in SOCKETS:
        status = await _socket_status(subject.remote.url, path)
        count += status != 404
        if status not in (401, 403, 404):
            leaks.append(f"WS {path.partition('?')[0]} ({status})")
    if leaks:
        raise Fault(f"without a key: {', '.join(leaks[:6])}{', ...' if len(leaks) > 6 else ''}")
    return f"{count} routes; open: {', '.join(each.split(' (')[0] for each in public) or 'none'}"


async def _status(anybody: httpx2.AsyncClient, method: str, path: str) -> int:
    # Only the status is read: a route that streams for ever must not hold the audit up.
    url = re.sub(r"\{[^}]*\}", NO_SUCH, path)
    body: dict[str, str] | None = None if method == "get" else {}
    async with anybody.stream(method.upper(), url, json=body) as answer:
        return answer.status_code


async def _socket_status(url: str, path: str) -> int:
    try:
        async with websockets.connect("ws" + url.removeprefix("http") + path, open_timeout=10, proxy=None):
            return 101
    except websockets.InvalidStatus as refused:
        return refused.response.status_code
    except (websockets.WebSocketException, OSError):
        return 404  # no WebSockets at all
