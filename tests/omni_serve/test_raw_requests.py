"""Requests as bytes on a socket: heads that no server may answer, bodies that are not read, and many connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import websockets
from omni_serve_clients import running_server
from starlette.types import Receive, Scope, Send

from omni_core import AsyncPipe
from omni_serve import Settings, connections, create_app
from omni_serve.settings import Limits

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = b"authorization: Bearer the secret\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(pipe: AsyncPipe) -> AsyncIterator[str]:
    settings = Settings(keys={"mine": "the secret"}, limits=Limits(body_mib=0.5))
    async with running_server(create_app(pipe, settings)) as found:
        yield found


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address.split(":"))
    try:
        async with asyncio.timeout(60):
            yield reader, writer
    finally:
        writer.close()


async def answers(address: str, request: bytes) -> list[tuple[int, bytes]]:
    """Return the status and the body of each answer until the server closes the connection; ``connection: close`` must be in the last."""
    async with connected(address) as (reader, writer):
        writer.write(request)
        received = await reader.read()
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        found.append((int(head.split()[1]), rest[:length]))
        received = rest[length:]
    assert b"\r\nconnection: close" in head
    return found


async def refusal(address: str, request: bytes) -> tuple[int, str]:
    """Return the status and the code of the only answer."""
    [(status, body)] = await answers(address, request)
    return status, json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nHost: b\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.0\r\nhost: a\r\nHost: b\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nhost:\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nhost:  \r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nhost: a b\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nhost: a, b\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nhost: http://a\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nhost: a:b\r\n\r\n", 400, "invalid_host"),
        (b"GET http://a/health HTTP/1.1\r\n\r\n", 400, "invalid_host"),
        (b"POST /v1/responses HTTP/1.1\r\ncontent-length: 2\r\n" + KEY + b"\r\n{}", 400, "invalid_host"),
        (b"GET /v1/realtime HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", 400, "invalid_host"),
        (b"GET /health\r\n\r\n", 505, "invalid_http"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414, "url_too_long"),
        (b"GET /?" + b"a" * 1_000_000, 414, "url_too_long"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431, "headers_too_long"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 1_000_000, 431, "headers_too_long"),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * 30_000, 431, "headers_too_long"),
        (b"GET / HTTP/9.9\r\nhost: a\r\n\r\n", 400, "invalid_http"),
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nno colon\r\n\r\n", 400, "invalid_http"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400, "invalid_http"),
        (
            b"POST /v1/responses HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n" + KEY + b"\r\nzz\r\n",
            400,
            "invalid_http",
        ),
    ],
)
async def test_a_wrong_head_is_refused(address: str, head: bytes, status: int, code: str) -> None:
    assert await refusal(address, head) == (status, code)


@pytest.mark.parametrize("host", [b"a", b"a.example:80", b"127.0.0.1:", b"[::1]:8000", b"under_score", b"xn--e1afmkfd"])
async def test_names_of_hosts_are_taken(address: str, host: bytes) -> None:
    [(status, _)] = await answers(address, b"GET /health HTTP/1.1\r\nconnection: close\r\nhost: %b\r\n\r\n" % host)
    assert status == 200


async def test_http_1_0_needs_no_host(address: str) -> None:
    [(status, _)] = await answers(address, b"GET /health HTTP/1.0\r\n\r\n")
    assert status == 200


async def test_http_1_0_gets_streams_whole(address: str) -> None:
    for stream_format, given in (("sse", b'"fail"'), ("sse", b'"one"'), ("audio", b'"one"')):
        body = b'{"model":"tones","response_format":"pcm","stream_format":"%b","input":%b}' % (
            stream_format.encode(),
            given,
        )
        head = b"POST /v1/audio/speech HTTP/1.0\r\ncontent-type: application/json\r\n" + KEY
        async with connected(address) as (reader, writer):
            writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            received = await reader.read()
        head, _, answer = received.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert b"content-length: %d" % len(answer) in head
        assert head.split()[1] == (b"500" if given == b'"fail"' else b"200")


async def test_a_long_target_and_long_headers_are_taken(address: str) -> None:
    head = b"GET /health?%b HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: %b\r\n\r\n" % (b"a" * 16_000, b"b" * 40_000)
    [(status, _)] = await answers(address, head)
    assert status == 200


async def test_a_wrong_head_after_others_ends_the_connection(address: str) -> None:
    good = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
    async with connected(address) as (reader, writer):
        writer.write(good)
        await reader.readuntil(b"}")
        writer.write(good.replace(b"host", b"x"))
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_a_wrong_head_never_gets_the_place_of_another_answer(address: str) -> None:
    both = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\nGET /health HTTP/1.1\r\n\r\n"
    async with connected(address) as (reader, writer):
        writer.write(both)
        received = await reader.read()
    assert received == b"" or received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        pytest.param(b"content-length: 100000\r\n", 401, id="without a key"),
        pytest.param(b"transfer-encoding: chunked\r\n", 401, id="in pieces, without a key"),
        pytest.param(KEY + b"content-length: 9999999\r\n", 413, id="too large"),
        pytest.param(KEY + b"content-length: 100000\r\norigin: http://evil\r\nx-bad: 1\r\n", 404, id="no such route"),
    ],
)
async def test_what_is_not_read_ends_the_connection(
    address: str, monkeypatch: pytest.MonkeyPatch, fields: bytes, status: int
) -> None:
    """Also if the client goes on sending; and it can read the answer."""
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.3)
    path = b"/nowhere" if status == 404 else b"/v1/responses"
    async with connected(address) as (reader, writer):
        writer.write(b"POST %b HTTP/1.1\r\nhost: a\r\n%b\r\n" % (path, fields))
        head = await reader.readuntil(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        assert b"\r\nconnection: close" in head
        assert (await reader.read()).endswith(b"}")
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"1")
                await writer.drain()
                await asyncio.sleep(0.02)


async def test_a_body_that_comes_late_ends_the_connection_too(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_serve.guard._BODY_SECONDS", 0.1)
    request = b"POST /v1/responses HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n" + KEY + b"\r\n{"
    assert await refusal(address, request) == (408, "body_timeout")


async def test_a_connection_goes_on_after_a_whole_body(address: str) -> None:
    """Also after an error, also in pieces, and where the body comes after the head."""
    async with connected(address) as (reader, writer):
        for fields, body in (
            (KEY + b"content-length: 2\r\n", b"{}"),
            (KEY + b"transfer-encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
        ) * 2:
            writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: a\r\n%b\r\n" % fields)
            await asyncio.sleep(0.02)
            writer.write(body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert b"connection: close" not in head
            await reader.readuntil(b"}}")


async def greet(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 204, or echo a WebSocket."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass


async def test_connections_of_one_address_are_bounded() -> None:
    """Those of WebSockets too; and each that ends makes room."""
    request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    async with running_server(greet, connections_per_address=3) as address:

        async def status() -> int:
            async with connected(address) as (reader, writer):
                writer.write(request)
                return int((await reader.readuntil(b"\r\n\r\n")).split()[1])

        async def reaches(wanted: int) -> None:
            async with asyncio.timeout(60):  # the server sees the end of a connection a little later
                while await status() != wanted:
                    await asyncio.sleep(0.01)

        for _ in range(3):
            async with connected(address), connected(address), websockets.connect(f"ws://{address}/") as socket:
                await socket.send("a")
                assert await status() == 503
                assert await status() == 503
            await reaches(204)


async def test_addresses_are_counted_by_what_one_client_has() -> None:
    addresses = connections.Addresses(2)
    assert addresses.enter(("2001:db8::1", 1))
    assert addresses.enter(("2001:db8::2%eth0", 1))
    assert not addresses.enter(("2001:db8::3", 1))
    assert addresses.enter(("2001:db8:0:1::1", 1))
    assert addresses.enter(("192.0.2.1", 1))
    assert addresses.enter(("192.0.2.2", 1))
    addresses.leave(("2001:db8::4", 1))
    assert addresses.enter(("2001:db8::3", 1))
    assert all(addresses.enter(None) for _ in range(5))
