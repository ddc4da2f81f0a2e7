"""Network addresses in settings."""

from __future__ import annotations

import ipaddress
from typing import Final

from fencepost.errors import ConfigError

_CLIENT_BITS: Final = 64
"""Length of the smallest network of IPv6 that a provider gives to a customer."""


def parse_address(address: str) -> tuple[str, int]:
    """Parse HOST:PORT or [IPV6]:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"address must be HOST:PORT, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def one_client(address: str) -> str:
    """Return the part of an IP address that one client cannot change at will: all of an IPv4 address, also of one that
    a socket for both versions reports as `::ffff:192.0.2.1`, and the network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _CLIENT_BITS), strict=False))
