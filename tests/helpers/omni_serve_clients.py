"""ASGI clients for what httpx cannot do: WebSockets, and requests whose client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from starlette.types import ASGIApp, Message

SECRET = "the-secret-of-the-demo"
"""The key of the demo's server."""


def http_client(app: ASGIApp, **options: Any) -> httpx2.AsyncClient:
    """Return a client of an application."""
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://test", **options
    )


class Connection:
    """One connection to an application, both directions by hand."""

    def __init__(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        self.to_app: asyncio.Queue[Message] = asyncio.Queue()
        self.from_app: asyncio.Queue[Message] = asyncio.Queue()
        self.task = asyncio.ensure_future(app(scope, self.to_app.get, self.from_app.put))

    async def receive(self) -> Message:
        async with asyncio.timeout(60):
            return await self.from_app.get()

    async def receive_json(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads((await self.receive())["text"])
        return made

    async def send_text(self, text: str) -> None:
        await self.to_app.put({"type": "websocket.receive", "text": text})

    async def send_json(self, data: Any) -> None:
        await self.send_text(json.dumps(data))


def _headers(given: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in {"host": "test", **given}.items()]


@asynccontextmanager
async def socket_to(app: ASGIApp, path: str, accepted: bool = True, **headers: str) -> AsyncIterator[Connection]:
    """A WebSocket; it is accepted unless the test looks at the refusal."""
    path, _, query = path.partition("?")
    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "scheme": "ws",
        "headers": _headers({name.replace("_", "-"): value for name, value in headers.items()}), "subprotocols": [],
        "extensions": {"websocket.http.response": {}}, "client": ("test", 1), "server": ("test", 80), "asgi": {"version": "3.0"},
    }  # fmt: skip
    connection = Connection(app, scope)
    await connection.to_app.put({"type": "websocket.connect"})
    try:
        if accepted:
            assert (await connection.receive())["type"] == "websocket.accept"
        yield connection
    finally:
        await connection.to_app.put({"type": "websocket.disconnect", "code": 1006})
        async with asyncio.timeout(60):
            await connection.task


def request_to(app: ASGIApp, path: str, body: Any, **headers: str) -> Connection:
    """A POST that was sent as a whole; a ``http.disconnect`` may follow."""
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "scheme": "http", "headers": _headers({"content-type": "application/json", **headers}), "client": ("test", 1),
        "server": ("test", 80), "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
    }  # fmt: skip
    connection = Connection(app, scope)
    connection.to_app.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
    return connection


@asynccontextmanager
async def running_server(app: ASGIApp, **settings: Any) -> AsyncIterator[str]:
    """An application behind a real web server in this event loop; yields HOST:PORT. Args: settings: of the server."""
    from omni_serve.listening import open_socket, web_server

    listener = open_socket("127.0.0.1:0")
    server = web_server(app, drain_seconds=5, **settings)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.end()
        await serving
