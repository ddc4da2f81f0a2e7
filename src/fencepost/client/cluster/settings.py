"""How to reach a cluster: addresses, timeouts, security.

`ClientSettings` is what the client's code reads. `from_config` builds one from a mapping with the familiar dotted
names; a name that means nothing here is an error that names the nearest one, never silently ignored.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from fencepost.client.cluster.security import OPEN, Security
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
    """One or more addresses, separated by commas or as a list; what Kafka's clients call bootstrap servers."""
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


def default_client_id() -> str:
    """Return `fencepost:PROGRAM:HOST:PROCESS`."""
    started = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    folder, name = os.path.split(started)
    program = os.path.basename(folder) if name == "__main__.py" else name.removesuffix(".py")
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return f"fencepost:{program}:{host}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    servers: tuple[Address, ...]
    client_id: str = field(default_factory=default_client_id)
    """By this the server's log and `fencepost owners` name the client; by default program, host and process."""
    request_timeout: float = 30.0
    """Seconds for one answer, and for all the tries of one call together."""
    connect_timeout: float = 10.0
    retry_backoff: float = 0.1
    """Seconds between two tries of what waiting cures (no leader yet, coordinator loading)."""
    security: Security = OPEN
    replication: int | None = None
    """Replicas of the topics that fencepost creates for owners, sinks and copies. None: three, or as many as there are
    brokers."""

    @property
    def addresses(self) -> str:
        """The servers as users write them: host:port[,host:port…]."""
        return ",".join(map(str, self.servers))

    @classmethod
    def of(cls, servers: Servers | ClientSettings) -> ClientSettings:
        return servers if isinstance(servers, ClientSettings) else cls(parse_servers(servers))

    @classmethod
    def from_config(cls, config: Mapping[str, object], *, default_servers: str = DEFAULT_SERVERS) -> ClientSettings:
        """From librdkafka's and Java's names; `config_names.py` has them all."""
        from fencepost.client.cluster.config_names import client_settings  # which knows these classes

        return client_settings(config, default_servers=default_servers)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, if there is one that is close."""
    import difflib  # loaded only for the hint of an error

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
