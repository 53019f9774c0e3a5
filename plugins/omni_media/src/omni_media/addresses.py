"""Tells which addresses are of the public internet.

The networks are listed here: what ``ipaddress`` calls global differs between versions of Python, and knows no clouds.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NOT_PUBLIC_V4 = tuple(
    map(
        IPv4Network,
        (
            # IANA's registry of special addresses, https://www.iana.org/assignments/iana-ipv4-special-registry
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            # services of a cloud to its own machines, at public addresses: Azure, IBM, Equinix
            "168.63.129.16/32",
            "161.26.0.0/16",
            "166.8.0.0/14",
            "192.80.8.124/32",
        ),
    )
)

_GLOBAL_V6 = IPv6Network("2000::/3")
"""All that is assigned to the internet; loopback, local, mapped, multicast and reserved addresses are elsewhere."""

_NOT_PUBLIC_V6 = tuple(
    map(
        IPv6Network,
        (
            # https://www.iana.org/assignments/iana-ipv6-special-registry; 2001::/23 has Teredo, 2002::/16 is 6to4
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)

_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet, also as the IPv4 address that an IPv6 address stands for.

    Raises:
        ValueError: it is no IP address.
    """
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        inner = IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.ipv4_mapped
        if inner is None:
            return ip in _GLOBAL_V6 and not any(ip in each for each in _NOT_PUBLIC_V6)
        ip = inner
    return not any(ip in each for each in _NOT_PUBLIC_V4)
