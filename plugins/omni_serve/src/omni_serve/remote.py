"""A client of any OpenAI-compatible server, for `omni bench serve`: requests, server-sent events, plain errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import httpx2

from omni_core.api import ConfigError, OmniError

PCM_RATE = 24_000
"""Of OpenAI's headerless PCM, in Hz."""

DONE = "[DONE]"


class UnreachableError(OmniError):
    """The server cannot be called: a wrong address, a refused connection, a refused key."""


class BadStreamError(Exception):
    """A stream is not what the protocol says. ``kind`` is a short class for counting."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def base_of(url: str) -> str:
    """Return a server's address without a trailing ``/v1``.

    Raises:
        ConfigError: it is not an http(s) URL.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ConfigError(f"{url}: not a URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url}: must be an address such as http://127.0.0.1:8000")
    if parsed.query or parsed.fragment:
        raise ConfigError(f"{url}: must be the server's address alone, without ? and #")
    return str(parsed).rstrip("/").removesuffix("/v1")


class Remote:
    """A server at an address. Use it as an asynchronous context manager.

    Args:
        url: with or without ``/v1``.
        key: sent as a bearer token.
        timeout: seconds without a byte.
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 120.0) -> None:
        self.url, self.key = base_of(url), key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self.http = httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, limits=limits)

    async def __aenter__(self) -> Remote:
        await self.http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.__aexit__(kind, error, trace)

    async def model(self, given: str | None) -> str:
        """Return the name of the model to use: the given one, or the first that ``GET /v1/models`` lists.

        Raises:
            UnreachableError: nobody answers at this address, or wants a key; the server lists no model, and none is given.
        """
        try:
            answer = await self.http.get("/v1/models")
        except httpx2.TimeoutException:
            raise UnreachableError(f"{self.url}: no answer within the time-out; is this the right address?") from None
        except httpx2.TransportError as error:
            raise UnreachableError(f"{self.url}: cannot connect ({error}); is the server running there?") from None
        if answer.status_code in (401, 403):
            how = "refuses this API key" if self.key else "asks for an API key: give --api-key or OMNI_API_KEY"
            raise UnreachableError(f"{self.url}: the server {how} ({answer.status_code})")
        if given is not None:
            return given
        try:
            return str(answer.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise UnreachableError(
                f"{self.url}/v1/models lists no model: is this an OpenAI-compatible server? If so, name one with --model"
            ) from None

    def post(self, path: str, body: Any) -> AbstractAsyncContextManager[httpx2.Response]:
        """Send a JSON body; the answer is read as it arrives."""
        return self.http.stream("POST", path, json=body)


async def events(answer: httpx2.Response) -> AsyncIterator[Any]:
    """Yield the JSON of the server-sent events of an answer; ``[DONE]`` as the text.

    Raises:
        BadStreamError: an event is not JSON, or is an error.
    """
    lines = list[str]()
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield _data("\n".join(lines))
            lines = []
    if lines:
        yield _data("\n".join(lines))


def _data(text: str) -> Any:
    if text == DONE:
        return text
    try:
        data = json.loads(text)
    except ValueError:
        raise BadStreamError("bad event", f"an event's data is not JSON: {text[:80]!r}") from None
    if isinstance(data, dict) and data.get("error"):
        error = data["error"]
        code = error.get("code") or error.get("type") if isinstance(error, dict) else None
        raise BadStreamError(f"in stream: {code or 'error'}", f"the stream ends with an error: {str(error)[:200]}")
    return data
