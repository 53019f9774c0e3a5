"""TCP addresses of hosts, as configs and commands write them."""

from __future__ import annotations

from omni_core.errors import ConfigError


def split_address(address: str) -> tuple[str, int]:
    """Parse ``tcp://HOST:PORT``; return host and port.

    Raises:
        ConfigError: it has another form.
    """
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme != "tcp" or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address of a host; it must be of the form tcp://HOST:PORT")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return ``tcp://HOST:PORT``, with brackets around an IPv6 number."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
