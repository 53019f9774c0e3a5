"""Fetches media by URL without letting the URL reach where its sender could not.

Each connection, of the first request and of every redirect, is made by a socket that is only made for a public address: what is checked
is the address that it connects to, whatever a name resolved to before. Proxies and cookies are not used.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from omni_core.errors import InvalidRequestError

try:
    import aiohttp
    from yarl import URL
except ImportError as missing:
    raise InvalidRequestError("URLs can be fetched only with aiohttp: pip install 'omni-media[urls]'") from missing

_REDIRECTS = 5
_NAT64 = IPv6Network("64:ff9b::/96")
_INTERNAL = "leads to no public address"


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet, also as the IPv4 address that an IPv6 address stands for.

    Raises:
        ValueError: it is no IP address.
    """
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        inner = IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.ipv4_mapped or ip.sixtofour
        ip = inner or (ip.teredo[1] if ip.teredo else ip)
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


async def fetch(url: str, where: str, limit: int, seconds: float, *, allow_internal: bool = False) -> bytes:
    """Return the content of an http or https URL.

    Args:
        where: the URL's place in the request, for messages. limit: bytes. seconds: for all of it, redirects included.

    Raises:
        InvalidRequestError: it cannot be fetched, is larger, or leads to an internal address.
    """
    connector = aiohttp.TCPConnector(socket_factory=None if allow_internal else _public_socket, use_dns_cache=False)
    session = aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
    )
    try:
        async with asyncio.timeout(seconds), session:
            target = URL(url)
            for _ in range(_REDIRECTS + 1):
                found = await _get(session, target, limit)
                if isinstance(found, bytes):
                    return found
                target = found
            problem = f"more than {_REDIRECTS} redirects"
    except TimeoutError:
        problem = f"no whole answer within {seconds:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # The address that a name resolves to is not told: it would map the network behind this machine.
        problem = f"it {_INTERNAL}" if _INTERNAL in str(error) else str(error)
    raise InvalidRequestError(f"{where}: cannot be fetched: {problem}")


def _public_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket for an address that was resolved. Raises OSError, which ends the attempt: it is not public."""
    family, kind, protocol, _, (host, *_) = address
    try:
        is_allowed = is_public(str(host))
    except ValueError:  # a short form such as 127.1, which the system would read as an address
        is_allowed = False
    if not is_allowed:
        raise OSError(errno.EACCES, _INTERNAL)
    return socket.socket(family, kind, protocol)


async def _get(session: aiohttp.ClientSession, url: URL, limit: int) -> bytes | URL:
    """Return the content, or where a redirect leads."""
    if url.scheme not in ("http", "https") or not url.host or url.user is not None:
        raise ValueError("only http and https URLs without a user name are fetched")
    headers = {"Accept-Encoding": "identity", "User-Agent": "omni"}
    async with session.get(url, headers=headers, allow_redirects=False) as answer:
        if answer.status in (301, 302, 303, 307, 308) and "Location" in answer.headers:
            return url.join(URL(answer.headers["Location"]))
        if answer.status != 200:
            raise ValueError(f"the server answers {answer.status} {answer.reason}")
        data = bytearray()
        async for piece in answer.content.iter_any():
            data += piece
            if max(len(data), answer.content_length or 0) > limit:
                raise ValueError(f"larger than the {limit / 2**20:.3g} MiB that are left (max_bytes)")
        return bytes(data)
