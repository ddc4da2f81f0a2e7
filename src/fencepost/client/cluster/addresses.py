"""Addresses of servers, as users write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fencepost.errors import ConfigError

DEFAULT_PORT: Final = 9092
DEFAULT_SERVERS: Final = f"127.0.0.1:{DEFAULT_PORT}"


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `host:port`, `host` (Kafka's port 9092) or `[v6]:port`."""
    text = text.strip()
    scheme, is_url, rest = text.partition("://")
    if is_url:
        address = rest.partition("/")[0] or DEFAULT_SERVERS
        raise ConfigError(f"{text!r} is a URL: expected host:port without {scheme}://, for example {address}")
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else ("" if closed and not rest else "?")
    elif text.count(":") > 1:  # a bare IPv6 address
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not port and not text.endswith(":"):
        port = str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ConfigError(f"{text!r} is not an address: expected host:port, for example {DEFAULT_SERVERS}")
    return Address(host, int(port))


Servers: TypeAlias = str | Address | Sequence[str | Address]


def parse_servers(servers: Servers) -> tuple[Address, ...]:
    """Parse one or more addresses, separated by commas or as a list: Kafka's bootstrap servers."""
    if isinstance(servers, Address):
        return (servers,)
    if isinstance(servers, list | tuple):
        found = tuple(address for each in servers for address in parse_servers(each))
    elif isinstance(servers, str):
        found = tuple(parse_address(part) for part in servers.split(",") if part.strip())
    elif isinstance(servers, Mapping):
        raise ConfigError(
            "servers is a dict: expected host:port[,host:port…]; from_config(…) takes a dict with Kafka's names, "
            "for example Producer.from_config({'bootstrap.servers': '127.0.0.1:9092'})"
        )
    else:
        raise ConfigError(f"servers={servers!r}: expected host:port[,host:port…], for example {DEFAULT_SERVERS}")
    if not found:
        raise ConfigError(f"no server given: expected host:port[,host:port…], for example {DEFAULT_SERVERS}")
    return found
