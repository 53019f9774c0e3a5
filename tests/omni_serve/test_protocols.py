"""Undocumented members of uvicorn and websockets on which our subclasses rely: each is named here, and exists in the installed versions."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator, Sequence
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from omni_serve import connections, incoming

HTTP = {
    "client", "config", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scope", "transport", "url",
    "connection_lost", "connection_made", "data_received", "handle_websocket_upgrade", "on_header", "on_headers_complete",
    "on_message_begin", "on_message_complete", "on_url", "send_400_response", "shutdown",
}  # fmt: skip
CYCLE = {
    "disconnected", "keep_alive", "message_event", "more_body", "response_complete", "response_started", "transport",
}  # fmt: skip
SOCKET = {
    "client", "close_sent", "close_timer", "config", "conn", "frames", "handshake_complete", "handshake_initiated", "loop", "queue",
    "read_paused", "scope", "transport", "connection_lost", "data_received", "handle_cont", "handle_parser_exception", "receive",
    "send", "send_receive_event_to_app",
}  # fmt: skip
CONNECTION = {"current_size", "data_to_send", "fail", "parser_exc", "reader"}
"""Of websockets' ``ServerProtocol``."""


def members(cls: type, owners: set[str]) -> Iterator[str]:
    """Yield the public members that a class defines or uses, of the objects that the code calls one of ``owners``."""
    tree = ast.parse(inspect.getsource(cls))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
            yield node.attr
        elif "self" in owners and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def used(classes: Sequence[type], owners: set[str]) -> set[str]:
    """Return the members of an undocumented class that our classes define or use."""
    return {name for cls in classes for name in members(cls, owners) if not name.startswith("_")}


def test_every_member_that_is_used_is_named_here() -> None:
    http, socket = [connections.BoundedProtocol], [connections.BoundedSocket, incoming.BoundedWebSocket]
    own = {"self", "super()"}
    cycles = {"cycle", "self.cycle", "self._cycle"}
    assert used(http, own) == HTTP
    assert used(socket, own) == SOCKET
    assert used([connections.BoundedProtocol, connections.JoinedHead], cycles) == CYCLE
    assert used(socket, {"self.conn"}) == CONNECTION


@pytest.fixture
def config() -> uvicorn.Config:
    """A server's configuration whose application waits for ever."""

    async def app(scope: object, receive: object, send: object) -> None:
        await asyncio.Event().wait()

    made = uvicorn.Config(app, ws=WebSocketsSansIOProtocol, log_config=None)
    made.load()
    return made


def missing(value: object, names: set[str]) -> set[str]:
    """Return the names that an object lacks."""
    return {name for name in names if not hasattr(value, name)}


async def test_members_of_uvicorns_http(config: uvicorn.Config) -> None:
    protocol = HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    protocol.connection_made(Mock(get_extra_info=Mock(return_value=None)))
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert missing(protocol, HTTP) == set()
    assert missing(protocol.cycle, CYCLE) == set()
    assert missing(protocol.flow, {"resume_reading"}) == set()
    assert httptools_impl.STATUS_LINE[404].startswith(b"HTTP/1.1 404 ")
    for task in protocol.tasks:
        task.cancel()


async def test_members_of_uvicorns_websocket(config: uvicorn.Config) -> None:
    protocol = WebSocketsSansIOProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    protocol.connection_made(Mock(get_extra_info=Mock(return_value=None)))
    lines = "GET / HTTP/1.1", "Host: a", "Upgrade: websocket", "Connection: upgrade", "Sec-WebSocket-Version: 13"
    protocol.data_received("\r\n".join((*lines, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", "")).encode())
    protocol.data_received(b"\x01\x81\0\0\0\0a")  # a fragment of a text, which sets `frames`
    assert missing(protocol, SOCKET) == set()
    assert missing(protocol.conn, CONNECTION) == set()
    assert isinstance(protocol.conn.reader.buffer, bytearray)
    for task in protocol.tasks:
        task.cancel()
