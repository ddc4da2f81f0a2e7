"""How to reach a cluster: addresses, timeouts, security.

`ClientSettings.from_config` takes a mapping with the dotted names of Kafka's clients. It rejects an unknown name and
suggests the nearest known one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from fencepost.client.cluster.addresses import DEFAULT_SERVERS, Address, Servers, parse_servers
from fencepost.client.cluster.checks import MOST_SECONDS, check_seconds
from fencepost.client.cluster.security import OPEN, Security


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
    """The client's name in the server's log and in `fencepost owners`; by default program, host and process."""
    request_timeout: float = 30.0
    """Seconds for one answer, and for all attempts of one call together."""
    connect_timeout: float = 10.0
    retry_backoff: float = 0.1
    """Seconds between two attempts after an error that waiting cures (no leader yet, coordinator loading)."""
    security: Security = OPEN
    replication: int | None = None
    """Replicas of the topics that fencepost creates for owners, sinks and copies. None: three, or as many as there are
    brokers."""

    def __post_init__(self) -> None:
        check_seconds(self.request_timeout, "request_timeout", most=MOST_SECONDS)
        check_seconds(self.connect_timeout, "connect_timeout")
        check_seconds(self.retry_backoff, "retry_backoff", or_zero=True)

    @property
    def addresses(self) -> str:
        """The servers as `host:port[,host:port…]`."""
        return ",".join(map(str, self.servers))

    @classmethod
    def of(cls, servers: Servers | ClientSettings) -> ClientSettings:
        return servers if isinstance(servers, ClientSettings) else cls(parse_servers(servers))

    @classmethod
    def from_config(cls, config: Mapping[str, object], *, default_servers: str = DEFAULT_SERVERS) -> ClientSettings:
        """Build settings from librdkafka's and Java's names; `config_names.py` has them all."""
        from fencepost.client.cluster.config_names import client_fields  # for weight: most clients never need it

        return cls(**client_fields(config, default_servers=default_servers))
