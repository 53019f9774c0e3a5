"""Fetches media by URL without letting the URL reach where its sender could not.

Every host is resolved once and connected to at the addresses that were checked, on the first request and on each redirect. Addresses
that are not public are refused. Proxies and cookies are not used.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from omni_core.errors import InvalidRequestError

try:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from yarl import URL
except ImportError as missing:
    raise InvalidRequestError("URLs can be fetched only with aiohttp: pip install 'omni-media[urls]'") from missing

_REDIRECTS = 5
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet, also as the IPv4 address that an IPv6 address stands for."""
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        inner = IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.ipv4_mapped or ip.sixtofour
        ip = inner or (ip.teredo[1] if ip.teredo else ip)
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


class _Refused(OSError):
    pass


class _PublicResolver(AbstractResolver):
    """Resolves a name to its public addresses; the connection is made to those."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        public = [(kind, str(address[0])) for kind, _, _, _, address in found if is_public(str(address[0]))]
        if not public:
            raise _Refused(f"{host} is an internal address")
        return [
            ResolveResult(hostname=host, host=ip, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, ip in public
        ]

    async def close(self) -> None:
        pass


async def fetch(url: str, where: str, limit: int, seconds: float, *, allow_internal: bool = False) -> bytes:
    """Return the content of an http or https URL.

    Args:
        where: the URL's place in the request, for messages. limit: bytes. seconds: for all of it, redirects included.

    Raises:
        InvalidRequestError: it cannot be fetched, is larger, or leads to an internal address.
    """
    connector = aiohttp.TCPConnector(resolver=None if allow_internal else _PublicResolver(), use_dns_cache=False)
    session = aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
    )
    try:
        async with asyncio.timeout(seconds), session:
            target = URL(url)
            for _ in range(_REDIRECTS + 1):
                found = await _get(session, target, limit, allow_internal=allow_internal)
                if isinstance(found, bytes):
                    return found
                target = found
            raise _Refused(f"more than {_REDIRECTS} redirects")
    except TimeoutError:
        problem = f"no whole answer within {seconds:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        problem = str(error.__cause__ if isinstance(error, aiohttp.ClientConnectorError) and error.__cause__ else error)
    raise InvalidRequestError(f"{where}: cannot be fetched: {problem}")


async def _get(session: aiohttp.ClientSession, url: URL, limit: int, *, allow_internal: bool) -> bytes | URL:
    """Return the content, or where a redirect leads."""
    if url.scheme not in ("http", "https") or not url.host or url.user is not None:
        raise _Refused(f"{url.with_user(None) if url.host else url} is no http or https URL without a password")
    if not allow_internal and _is_literal(url.host) and not is_public(url.host):
        raise _Refused(f"{url.host} is an internal address")
    headers = {"Accept-Encoding": "identity", "User-Agent": "omni"}
    async with session.get(url, headers=headers, allow_redirects=False) as answer:
        if answer.status in (301, 302, 303, 307, 308) and "Location" in answer.headers:
            return url.join(URL(answer.headers["Location"]))
        if answer.status != 200:
            raise _Refused(f"the server answers {answer.status} {answer.reason}")
        data = bytearray()
        async for piece in answer.content.iter_any():
            data += piece
            if max(len(data), answer.content_length or 0) > limit:
                raise _Refused(f"larger than the {limit / 2**20:g} MiB that are left (max_bytes)")
        return bytes(data)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
