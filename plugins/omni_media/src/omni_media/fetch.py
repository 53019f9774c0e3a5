"""Fetches media by URL without letting the URL reach where its sender could not.

Each connection, of the first request and of every redirect, is made by a socket that is only made for a public address: what is checked
is the address that it connects to, whatever a name resolved to before. Proxies and cookies are not used.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence

from omni_core.api import ConfigError, InvalidRequestError
from omni_media.addresses import is_public

try:
    import aiohttp
    from yarl import URL
except ImportError as missing:
    raise InvalidRequestError("URLs can be fetched only with aiohttp: pip install 'omni-media[urls]'") from missing

_REDIRECTS = 5
_INTERNAL = "leads to no public address"


def check_host(pattern: str) -> str:
    """Return a host of an operator's list in the form in which it is compared.

    Args:
        pattern: a name, an address, or ``*.NAME`` for every name below it.

    Raises:
        ConfigError: it is none of these.
    """
    name = pattern.removeprefix("*.")
    try:
        made = "" if "*" in name else _plain(URL.build(scheme="http", host=name.strip("[]")))
    except ValueError:
        made = ""
    if not made:
        raise ConfigError(
            f"{pattern}: must be a host such as media.example.org or *.example.org, without a scheme, a port or a path"
        )
    return f"*.{made}" if name != pattern else made


def _plain(url: URL) -> str:
    return (url.raw_host or "").rstrip(".").casefold()


def _is_allowed(url: URL, hosts: Sequence[str]) -> bool:
    host = _plain(url)
    return any(host.endswith(each[1:]) if each.startswith("*.") else host == each for each in hosts)


async def fetch(
    url: str, where: str, limit: int, seconds: float, *, allow_internal: bool = False, hosts: Sequence[str] = ()
) -> bytes:
    """Return the content of an http or https URL.

    Args:
        where: the URL's place in the request, for messages.
        limit: bytes.
        seconds: for all of it, redirects included.
        hosts: those that are called, also for redirects, as :func:`check_host` takes them; empty: any.

    Raises:
        InvalidRequestError: it cannot be fetched, is larger, or leads to an internal address.
    """
    allowed = [check_host(each) for each in hosts]
    connector = aiohttp.TCPConnector(socket_factory=None if allow_internal else _public_socket, use_dns_cache=False)
    session = aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
    )
    try:
        async with asyncio.timeout(seconds), session:
            target = URL(url)
            for _ in range(_REDIRECTS + 1):
                if allowed and not _is_allowed(target, allowed):
                    raise ValueError(f"the operator of this server does not allow the host {target.host or ''!r:.100}")
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
