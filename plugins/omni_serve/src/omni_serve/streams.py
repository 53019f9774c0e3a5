"""Answers that are sent while they are made, and the watch over clients that go away.

Starlette cancels the generators of streams when a client disconnects, but not handlers that answer at the end: :func:`unless_gone`
does. An answer's status is sent with its first bytes, so that what fails before is an error of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from omni_core.api import watched
from omni_serve.bodies import dumps, encoded
from omni_serve.errors import ApiError, api_error

logger = logging.getLogger(__name__)

T = TypeVar("T")

HEADERS_AFTER = 2.0
"""Seconds after which the status of a stream is sent although there is nothing to send yet."""

SEND_SECONDS = 30.0
"""The time in which a client must take a piece. One that reads no more would keep its place in the pipeline for ever."""

_SENT = 2**20
"""Bytes of an answer that are sent at once."""

ABORT = "omni.abort"
"""The extension of ASGI by which the web server ends a connection at once."""

COMPLETE = "omni.complete"
"""The extension of ASGI that tells if the whole body of a request is here, so that reading it waits for nothing."""

WATCH_AFTER = 0.05
"""Seconds after which the connection of a running request is watched. A task for every short request would cost more than its answer."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Await ``work``; cancel it when the client goes away.

    Raises:
        ApiError: 499, the client is gone. What ``work`` raises.
    """
    watch = _Watch(request.receive)
    try:
        return await work
    except asyncio.CancelledError:
        if watch.uncancelled():
            raise ApiError(499, "The client has closed the connection.", code="request_cancelled") from None
        raise
    finally:
        watch.stop()


class ClientStalledError(Exception):
    """A client has stopped reading."""


class _Watch:
    """Cancels the task that made it when the client disconnects. It begins a little later: most answers are sent before."""

    def __init__(self, receive: Receive) -> None:
        self._task = asyncio.current_task()
        self._gone = False
        self._receive = receive
        self._watcher: asyncio.Future[None] | None = None
        self._begin = asyncio.get_running_loop().call_later(WATCH_AFTER, self._start)

    def _start(self) -> None:
        self._watcher = watched(self._watch(), "the watch of a client")

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._task is not None:
            self._task.cancel()

    def uncancelled(self) -> bool:
        """Return whether the cancellation was this watch's, and take it back."""
        if self._gone and self._task is not None:
            self._task.uncancel()
        return self._gone

    def stop(self) -> None:
        """Watch no more."""
        self._begin.cancel()
        if self._watcher is not None:
            self._watcher.cancel()


class Stream(Response):
    """An answer in pieces. ``pieces`` is closed at once when the client goes away, which aborts the request in every stage.

    Args:
        events: pieces are server-sent events: an error is one too, and comments keep an idle connection open.
        failed: makes the last event of a stream that fails; by default it is the error alone.
        gone: returns when the client has disconnected, for a request whose body is still read.
        ping_seconds: between such comments.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        media_type: str,
        *,
        events: bool = False,
        failed: Callable[[ApiError], bytes] = lambda error: event(error.body),
        ping_seconds: float = 15.0,
        headers: Mapping[str, str] | None = None,
        gone: Receive | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._pieces, self._events, self._ping_seconds = pieces, events, ping_seconds
        self._failed, self._gone = failed, gone
        self._raw = [(b"content-type", media_type.encode())]
        self._raw += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        self._raw += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._begun = False
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if scope.get("http_version") == "1.0":
            send = _joined(send)
        watch = _Watch(self._gone or receive)
        loop = asyncio.get_running_loop()
        self._sent = loop.time()
        beating: list[asyncio.Future[None]] = []
        beat = loop.call_later(HEADERS_AFTER, lambda: beating.append(watched(self._beat(send), "the beat of a stream")))
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    self._sent = loop.time()
                    await self._send(send, piece)
            await self._send(send, b"", last=True)
        except asyncio.CancelledError:
            if not watch.uncancelled():
                raise
            scope["omni.status"] = 499
        except ClientStalledError:
            logger.warning("a stream was cut: its client has read nothing for %g s", SEND_SECONDS)
            scope["omni.status"] = 499
            if abort := scope.get("extensions", {}).get(ABORT):
                abort["abort"]()  # closing would wait for the client
        except Exception as error:
            await self._fail(api_error(error), scope, receive, send)
        finally:
            watch.stop()
            beat.cancel()
            for each in beating:
                each.cancel()

    async def _send(self, send: Send, data: bytes, *, last: bool = False) -> None:
        """Send a piece.

        Raises:
            ClientStalledError: the client does not read.
        """
        try:
            async with asyncio.timeout(SEND_SECONDS), self._lock:
                if not self._begun:
                    self._begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": self._raw})
                await send({"type": "http.response.body", "body": data, "more_body": not last})
        except TimeoutError:
            raise ClientStalledError from None

    async def _beat(self, send: Send) -> None:
        """Send the status when it takes long, and comments in a stream of events."""
        loop = asyncio.get_running_loop()
        if not self._begun:
            with suppress(ClientStalledError):
                await self._send(send, b"")
        while self._events:
            due = self._sent + self._ping_seconds
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            else:
                self._sent = loop.time()
                with suppress(ClientStalledError):  # the next piece says so
                    await self._send(send, b": ping\n\n")

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        scope["omni.status"] = error.status
        if not self._begun:
            self._begun = True
            await error.response()(scope, receive, send)
        elif self._events:
            await self._send(send, self._failed(error), last=True)
        else:
            # The end of the body is left out: the client sees that the sound is cut, not that it is complete.
            logger.warning("a stream of sound was cut: %s", error.message)


def whole(data: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer that is there. One of many megabytes is sent in steps: the web server copies what it sends on the event loop."""
    if len(data) <= _SENT:
        return Response(data, media_type=media_type, headers=headers)

    async def steps() -> AsyncGenerator[bytes]:
        for start in range(0, len(data), _SENT):
            yield data[start : start + _SENT]

    return Stream(steps(), media_type, headers={"content-length": str(len(data)), **(headers or {})})


async def media_response(data: Any) -> Response:
    """Return an answer in JSON with :class:`~omni_serve.bodies.Base64` in it."""
    return whole(await encoded(data), "application/json")


def _joined(send: Send) -> Send:
    """Return a ``send`` that sends all at once, with its length: HTTP/1.0 has no chunks (RFC 9112, 6.1)."""
    start: Message = {}
    pieces: list[bytes] = []

    async def joined(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            body = b"".join(pieces)
            others = [each for each in start["headers"] if each[0] != b"content-length"]
            await send({**start, "headers": [*others, (b"content-length", str(len(body)).encode())]})
            await send({"type": "http.response.body", "body": body, "more_body": False})

    return joined


def event(data: Any, name: str | None = None) -> bytes:
    """Return a server-sent event with JSON data."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {dumps(data)}\n\n".encode()


async def encoded_event(data: Any, name: str) -> bytes:
    """Return an event with :class:`~omni_serve.bodies.Base64` in its data."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), await encoded(data))


DONE = b"data: [DONE]\n\n"
