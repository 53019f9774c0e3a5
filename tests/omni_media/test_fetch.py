"""Fetching by URL: what is fetched, what is refused, and that no name or redirect leads to an internal address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("aiohttp")
from aiohttp import web

from omni_core.client.messages import MediaPolicy
from omni_core.errors import InvalidRequestError
from omni_media import Reader
from omni_media.fetch import fetch, is_public


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """A server on loopback, for tests that allow internal addresses."""

    async def answer(request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/slow":
            await asyncio.sleep(30)
        if path == "/chunks":
            stream = web.StreamResponse()
            await stream.prepare(request)
            for _ in range(100):
                await stream.write(b"x" * 1000)
            return stream
        if path == "/round":
            raise web.HTTPFound("/round")
        if path == "/to":
            raise web.HTTPFound(request.query["url"])
        if path == "/missing":
            raise web.HTTPNotFound
        return web.Response(body=b"content " + request.headers["Accept-Encoding"].encode())

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    yield f"http://127.0.0.1:{port}"
    await runner.cleanup()


async def get(url: str, *, allow_internal: bool = True, limit: int = 10_000, seconds: float = 5.0) -> bytes:
    return await fetch(url, "messages[0].content[0].image_url.url", limit, seconds, allow_internal=allow_internal)


async def test_content_is_fetched_through_redirects(server: str) -> None:
    assert await get(f"{server}/x") == b"content identity"
    assert await get(f"{server}/to?url=/x") == b"content identity"
    policy = MediaPolicy(allow_urls=True, allow_internal_urls=True)
    assert await Reader(policy).values("image", f"{server}/x") == [{"type": "image", "data": b"content identity"}]


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("/missing", {}, "the server answers 404 Not Found"),
        ("/chunks", {}, "larger than the 0.00954 MiB that are left"),
        ("/x", {"limit": 3}, "larger than"),
        ("/slow", {"seconds": 0.2}, "no whole answer within 0.2 s"),
        ("/to?url=ftp://a/b", {}, "only http and https URLs"),
        ("/to?url=http://user:word@a/b", {}, "without a user name"),
    ],
)
async def test_what_cannot_be_fetched_is_named(server: str, path: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=rf"^messages\[0\]\.content\[0\]\.image_url\.url: cannot be fetched: .*({words})"
    ):
        await get(f"{server}{path}", **options)


async def test_redirects_end(server: str) -> None:
    with pytest.raises(InvalidRequestError, match="more than 5 redirects"):
        await get(f"{server}/round")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]"],
)
async def test_internal_addresses_are_refused_before_a_connection(host: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"leads to no public address|is not a canonical IPv4 address"):
        await get(f"http://{host}:9/x", allow_internal=False)


async def test_a_redirect_to_an_internal_address_is_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host counts as public, and resolves to the server; where the redirect leads is looked at again."""
    port = int(server.rpartition(":")[2])
    real = asyncio.get_running_loop().getaddrinfo

    async def resolved(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "public.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        return await real(host, *arguments, **options)

    seen: list[str] = []

    def judged(address: str) -> bool:
        seen.append(address)
        return len(seen) == 1

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    monkeypatch.setattr("omni_media.fetch.is_public", judged)
    with pytest.raises(InvalidRequestError, match=r"cannot be fetched: it leads to no public address$"):
        await get(f"http://public.example:{port}/to?url=http://localhost:{port}/x", allow_internal=False)
    assert len(seen) >= 2


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public
