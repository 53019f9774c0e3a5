"""The head of an answer is sent with its body, and never lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from omni_serve_clients import running_server
from starlette.types import Receive, Scope, Send

from omni_serve import connections

BODY = b"0123456789"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer as the path says."""
    if scope["type"] == "lifespan":
        return
    path = scope["path"]
    body = await receive() if scope["method"] == "POST" else {"body": b""}
    status = 204 if path == "/empty" else 200
    headers = [] if path in ("/chunked", "/empty") else [(b"content-length", b"10")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if path == "/fails":
        raise RuntimeError("after the head")
    if path == "/chunked":
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": BODY, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send({"type": "http.response.body", "body": b"" if status == 204 else body["body"] or BODY})


async def exchange(request: bytes) -> tuple[bytes, list[bytes]]:
    """Return what a server answers until it closes the connection, and each of its writes."""
    writes: list[bytes] = []
    made = connections.JoinedHead.__init__

    def remember(self: Any, cycle: Any, linger: Any) -> None:
        made(self, cycle, linger)
        plain = self._transport

        class Seen(asyncio.Transport):
            def write(self, data: Any) -> None:
                writes.append(bytes(data))
                plain.write(data)

            def writelines(self, parts: Any) -> None:
                self.write(b"".join(parts))

            def close(self) -> None:
                plain.close()

            def is_closing(self) -> bool:
                return bool(plain.is_closing())

        self._transport = Seen()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections.JoinedHead, "__init__", remember)
        async with running_server(app) as address:
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(request)
            async with asyncio.timeout(60):
                received = await reader.read()
            writer.close()
    return received, writes


def request(path: str, method: str = "GET", headers: str = "", body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n".encode() + body


@pytest.mark.asyncio
async def test_an_answer_is_one_write() -> None:
    received, writes = await exchange(request("/"))
    assert writes == [received]
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"\r\n\r\n" + BODY)


@pytest.mark.asyncio
async def test_the_head_goes_with_an_empty_piece() -> None:
    received, writes = await exchange(request("/chunked"))
    assert writes[0].endswith(b"transfer-encoding: chunked\r\n\r\n")
    assert writes[1:] == [b"a\r\n" + BODY + b"\r\n", b"0\r\n\r\n"]
    assert received == b"".join(writes)


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "method"), [("/", "HEAD"), ("/empty", "GET"), ("/fails", "GET")])
async def test_a_head_without_a_body_is_sent(path: str, method: str) -> None:
    received, _ = await exchange(request(path, method))
    assert received.startswith(b"HTTP/1.1 204" if path == "/empty" else b"HTTP/1.1 200")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.asyncio
async def test_the_permission_to_send_a_body_is_not_held_back() -> None:
    async with running_server(app) as address:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(request("/", "POST", "expect: 100-continue\r\ncontent-length: 10\r\n"))
        async with asyncio.timeout(60):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abcdefghij")
            assert (await reader.read()).endswith(b"\r\n\r\nabcdefghij")
        writer.close()


@pytest.mark.asyncio
async def test_answers_to_requests_that_came_together_are_complete() -> None:
    both = request("/").replace(b"connection: close\r\n", b"") + request("/chunked")
    received, writes = await exchange(both)
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received == b"".join(writes)
