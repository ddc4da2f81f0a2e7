"""Limits on connections: how many one address and one user may have, and how fast an address may open them.

They are checked when a connection is accepted, or when its client has logged in. A network of IPv6 counts as one
address, because a client can have all of it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final

from fencepost.core.quotas import CONNECTION_CREATION_RATE, TokenBucket
from fencepost.core.security.principal import ANONYMOUS, Principal
from fencepost.server.config.addresses import one_client

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

MOST_HTTP_CONNECTIONS: Final = 200
"""Connections to the HTTP port; one that makes no use of its place makes way for a new one."""
_MOST_ADDRESSES: Final = 10_000
"""Addresses whose rate is remembered; the one that was idle longest is forgotten first."""


class ConnectionLimits:
    """The counts of open connections. Used only on the event loop. Each check returns why the connection must be
    closed, or None."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._addresses: Counter[str] = Counter()
        self._users: Counter[Principal] = Counter()
        self._rates: OrderedDict[str, TokenBucket] = OrderedDict()

    def accepted(self, address: str) -> str | None:
        """Count a new connection for the rate of its address."""
        config, now = self._broker.config, self._broker.clock.monotonic()
        quota = self._broker.quotas.table.of_address(address, CONNECTION_CREATION_RATE)
        rate = quota if quota is not None else float(config.max_connection_rate_per_address)
        burst = config.quota_burst_ms / 1000
        client = one_client(address)
        bucket = self._rates.get(client)
        if bucket is None:
            bucket = self._rates[client] = TokenBucket(rate, burst, now)
            if len(self._rates) > _MOST_ADDRESSES:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(client)
            bucket.change(rate, burst, now)
        if not bucket.is_available(now):
            return f"{client} opens more than {rate:g} connections per second"
        bucket.spend(1.0, now)
        return None

    def opened(self, address: str) -> str | None:
        """Count an open connection of an address, until `closed`."""
        client, most = one_client(address), self._broker.config.max_connections_per_address
        self._addresses[client] += 1
        if self._addresses[client] > most:
            return f"max_connections_per_address ({most}) of {client} are open"
        return None

    def closed(self, address: str) -> None:
        client = one_client(address)
        self._addresses[client] -= 1
        if self._addresses[client] <= 0:
            del self._addresses[client]

    def entered(self, user: Principal) -> str | None:
        """Count a connection of an authenticated user, until `left`. Clients without a login are not counted as one."""
        if user == ANONYMOUS:
            return None
        self._users[user] += 1
        most = self._broker.config.max_connections_per_user
        if self._users[user] > most:
            return f"max_connections_per_user ({most}) of {user} are open"
        return None

    def left(self, user: Principal) -> None:
        if user == ANONYMOUS:
            return
        self._users[user] -= 1
        if self._users[user] <= 0:
            del self._users[user]
