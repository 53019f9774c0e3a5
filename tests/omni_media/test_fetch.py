"""Fetching by URL: what is fetched, what is refused, and that no name or redirect leads to an internal address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

pytest.importorskip("aiohttp")
from aiohttp import web

from omni_core.client.chat_request import MediaPolicy
from omni_core.errors import ConfigError, InvalidRequestError
from omni_media.fetch import check_host, fetch, is_public
from omni_media.reader import Reader


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
        ("2002:5db8:d822::", False),
        ("2001:0:5db8:d822::", False),
        ("64:ff9b::5db8:d822", True),
        ("64:ff9b:1::5db8:d822", False),
        ("::5db8:d822", False),
        ("fec0::1", False),
        ("feff::1", False),
        ("3fff::1", False),
        ("3fff:fff:ffff::1", False),
        ("4000::1", False),
        ("5f00::1", False),
        ("100::1", False),
        ("2001:db8::1", False),
        ("2620:4f:8000::1", False),
        ("2a00:1450:4001:81b::200e", True),
        ("192.88.99.1", False),
        ("192.0.0.192", False),
        ("192.0.0.9", False),
        ("192.0.1.1", True),
        ("198.19.255.255", False),
        ("203.0.113.7", False),
        ("100.100.100.200", False),
        ("100.128.0.1", True),
        ("172.32.0.1", True),
        ("168.63.129.16", False),
        ("168.63.129.17", True),
        ("::ffff:168.63.129.16", False),
        ("64:ff9b::a83f:8110", False),
        ("fd00:ec2::254", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_nothing_is_public_that_python_knows_not_to_be() -> None:
    """The list is ours, so that it is the same with every version; it must not have less than theirs."""
    for first in range(0, 2**32, 2**32 // 5000):
        ip = IPv4Address(first)
        assert ip.is_global or not is_public(str(ip)), ip
    for first in range(0, 2**16):
        wide = IPv6Address(first << 112 | 1)
        assert wide.is_global or not is_public(str(wide)), wide


@pytest.mark.parametrize(
    ("host", "allowed", "fetched"),
    [
        ("localhost", ("localhost",), True),
        ("LOCALHOST", ("Localhost.",), True),
        ("127.0.0.1", ("127.0.0.1",), True),
        ("127.0.0.1", ("localhost", "*.0.0.1"), True),
        ("localhost", ("*.localhost",), False),
        ("localhost", ("ocalhost", "*.example.org"), False),
        ("127.0.0.1", ("localhost",), False),
    ],
)
async def test_only_the_hosts_that_are_named_are_called(
    server: str, host: str, allowed: tuple[str, ...], fetched: bool
) -> None:
    url = server.replace("127.0.0.1", host)
    policy = MediaPolicy(allow_urls=True, allow_internal_urls=True, url_hosts=allowed)
    if fetched:
        assert await Reader(policy).values("image", f"{url}/x")
    else:
        with pytest.raises(InvalidRequestError, match="does not allow the host"):
            await Reader(policy).values("image", f"{url}/x")


async def test_a_redirect_to_another_host_is_not_followed(server: str) -> None:
    policy = MediaPolicy(allow_urls=True, allow_internal_urls=True, url_hosts=("127.0.0.1",))
    elsewhere = server.replace("127.0.0.1", "localhost")
    with pytest.raises(InvalidRequestError, match="does not allow the host 'localhost'"):
        await Reader(policy).values("image", f"{server}/to?url={elsewhere}/x")


@pytest.mark.parametrize(
    ("pattern", "host"),
    [
        ("Media.Example.org.", "media.example.org"),
        ("*.example.org", "*.example.org"),
        ("münchen.example", "xn--mnchen-3ya.example"),
        ("[2606:2800::1]", "2606:2800::1"),
    ],
)
def test_hosts_are_compared_in_one_form(pattern: str, host: str) -> None:
    assert check_host(pattern) == host


@pytest.mark.parametrize("pattern", ["", "*", "*.", "a.*.b", "https://a", "a:80", "a/b", "u@a", "a b", "*.*.a"])
def test_what_is_no_host_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="must be a host"):
        check_host(pattern)
