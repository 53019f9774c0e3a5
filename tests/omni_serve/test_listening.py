"""The web server's protocol: connections are bounded before anything of them is looked at."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from omni_serve_clients import running_server
from starlette.types import Receive, Scope, Send

from omni_serve.auth import ANYONE
from omni_serve.connections import HEAD_BYTES
from omni_serve.limits import Admission
from omni_serve.listening import Ending, open_socket, web_server
from omni_serve.settings import Settings


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


async def answer_to(address: str, *pieces: bytes) -> bytes:
    """Send pieces until the server ends the connection; return what it has said."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    try:
        async with asyncio.timeout(60):
            return await reader.read(12)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.asyncio
async def test_heads_are_bounded() -> None:
    head, big = b"POST / HTTP/1.1\r\nhost: x\r\n", 64 * HEAD_BYTES
    async with running_server(application) as address:
        assert await answer_to(address, head, b"a: ", *[b"b" * 4096] * (big // 4096)) == b"HTTP/1.1 431"
        assert await answer_to(address, b"GET /", *[b"b" * 4096] * (big // 4096)) == b"HTTP/1.1 414"
        body = b"content-length: %d\r\n\r\n" % big
        assert await answer_to(address, head, b"a: " + b"b" * (HEAD_BYTES // 2) + b"\r\n", body + b"b" * big) == (
            b"HTTP/1.1 200"
        )
        trailers = b"".join(b"t%d: %s\r\n" % (each, b"b" * 1000) for each in range(100))
        chunked = b"transfer-encoding: chunked\r\n\r\n0\r\n"
        assert await answer_to(address, head, chunked, *[trailers] * 10, b"\r\n") == b"HTTP/1.1 431"


@pytest.mark.asyncio
async def test_servers_end_when_the_running_requests_have() -> None:
    admission = Admission(Settings())
    server = web_server(application, drain_seconds=30)
    end = Ending(admission, [server], 30)
    async with admission.admit(ANYONE):
        end()
        await asyncio.sleep(0.01)
        assert admission.draining
        assert not server.should_exit
        other = asyncio.ensure_future(admission.drain(30))
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert await other
        while not server.should_exit:
            await asyncio.sleep(0)
    assert not server.force_exit


@pytest.mark.asyncio
async def test_a_second_signal_ends_at_once() -> None:
    admission = Admission(Settings())
    server = web_server(application, drain_seconds=30)
    said: list[str] = []
    end = Ending(admission, [server], 30, said.append)
    async with admission.admit(ANYONE):
        end()
        end()
        assert server.should_exit
        assert server.force_exit
    assert said == [
        "Ending: 1 request has 30 s to finish. A second signal (Ctrl-C) ends at once.",
        "Ending at once: 1 request is cut.",
    ]


@pytest.mark.asyncio
async def test_requests_that_do_not_finish_in_time_are_cut() -> None:
    """A turn that nobody ends: the application tells its client so, which uvicorn's own end of time leaves no room for."""
    admission = Admission(Settings())
    server = web_server(application, drain_seconds=0)
    end = Ending(admission, [server], 0.01)
    async with admission.admit(ANYONE), asyncio.timeout(60):
        end()
        while not server.should_exit:
            await asyncio.sleep(0)
        assert server.force_exit


@pytest.mark.asyncio
async def test_nothing_is_left_after_an_end_in_haste(caplog: pytest.LogCaptureFixture) -> None:
    ended = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        ended.append(True)
        await send({"type": "lifespan.shutdown.complete"})

    server = web_server(app, drain_seconds=5)
    serving = asyncio.ensure_future(server.serve(sockets=[open_socket("127.0.0.1:0")]))
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.01)
        server.end()
        server.end()
        await serving
    assert ended == [True]
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []
