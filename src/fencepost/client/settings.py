"""How to reach a cluster: addresses, timeouts, and the names that librdkafka and Java users know for them.

`ClientSettings` is what the client's code reads. `from_config` builds one from a mapping with the familiar dotted
names; a name that means nothing here is an error that names the nearest one, never silently ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from fencepost.errors import ConfigError

DEFAULT_PORT: Final = 9092
DEFAULT_SERVERS: Final = f"127.0.0.1:{DEFAULT_PORT}"


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host:port`, `host` (Kafka's port 9092) or `[v6]:port`."""
    text = text.strip()
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


def parse_servers(servers: str | Address) -> tuple[Address, ...]:
    """One or more addresses, separated by commas; what Kafka's clients call bootstrap servers."""
    if isinstance(servers, Address):
        return (servers,)
    found = tuple(parse_address(part) for part in servers.split(",") if part.strip())
    if not found:
        raise ConfigError(f"no server given: expected host:port[,host:port…], for example {DEFAULT_SERVERS}")
    return found


@dataclass(frozen=True, slots=True)
class ClientSettings:
    servers: tuple[Address, ...]
    client_id: str = "fencepost"
    request_timeout: float = 30.0
    """Seconds for one answer, and for all the tries of one call together."""
    connect_timeout: float = 10.0
    retry_backoff: float = 0.1
    """Seconds between two tries of what waiting cures (no leader yet, coordinator loading)."""

    @classmethod
    def of(cls, servers: str | Address | ClientSettings) -> ClientSettings:
        return servers if isinstance(servers, ClientSettings) else cls(parse_servers(servers))

    @classmethod
    def from_config(cls, config: Mapping[str, str], *, default_servers: str = DEFAULT_SERVERS) -> ClientSettings:
        settings = cls(parse_servers(default_servers))
        for name, value in config.items():
            try:
                field, parse = _NAMES[name]
            except KeyError:
                raise ConfigError(f"unknown setting {name!r}{nearest(name, _NAMES)}") from None
            parsed = parse(name, value)
            if field is not None:
                settings = replace(settings, **{field: parsed})
        return settings


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """`; did you mean …?`, or the list of all names when nothing is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"


def _servers(_name: str, value: str) -> tuple[Address, ...]:
    return parse_servers(value)


def _text(_name: str, value: str) -> str:
    return value


def _milliseconds(name: str, value: str) -> float:
    try:
        amount = int(value)
    except ValueError:
        amount = 0
    if amount <= 0:
        raise ConfigError(f"{name} must be a positive number of milliseconds, not {value!r}")
    return amount / 1000


def _plaintext(name: str, value: str) -> None:
    if value.upper() != "PLAINTEXT":
        raise ConfigError(f"{name}={value} is not supported: only PLAINTEXT is")


# Name → (field, parser). Several names are one field: librdkafka's first, then Java's.
_NAMES: Final[dict[str, tuple[str | None, Callable[[str, str], Any]]]] = {
    "bootstrap.servers": ("servers", _servers),
    "metadata.broker.list": ("servers", _servers),
    "client.id": ("client_id", _text),
    "socket.timeout.ms": ("request_timeout", _milliseconds),
    "request.timeout.ms": ("request_timeout", _milliseconds),
    "default.api.timeout.ms": ("request_timeout", _milliseconds),
    "socket.connection.setup.timeout.ms": ("connect_timeout", _milliseconds),
    "retry.backoff.ms": ("retry_backoff", _milliseconds),
    "security.protocol": (None, _plaintext),
}
