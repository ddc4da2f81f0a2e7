"""Limits on connections: how many one address and one user may have, and how fast an address may open them.

They are checked when a connection is accepted, or when its client has logged in. A network of IPv6 counts as one
address, because a client can have all of it. Connections whose client is not authenticated yet have a limit of their
own (`PendingConnections`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

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


class PendingConnection(Protocol):
    """A connection that is not authenticated yet."""

    @property
    def client_host(self) -> str: ...
    def refuse(self, why: str) -> None: ...


class PendingConnections:
    """The connections that are not authenticated yet: in their TLS handshake, or before their login.

    They are few, in total and per address: of too many, the oldest makes way for the new one. Otherwise silent
    connections would keep all others out until their time is over."""

    def __init__(self) -> None:
        self._since: dict[PendingConnection, float] = {}
        """Oldest first, with the time they were accepted."""
        self._by_address: dict[str, dict[PendingConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[PendingConnection]:
        return iter(list(self._since))

    def add(
        self, pending: PendingConnection, now: float, *, most: int, most_per_address: int
    ) -> PendingConnection | None:
        """Add a connection, and return the one that must make way for it."""
        self._since[pending] = now
        same = self._by_address.setdefault(one_client(pending.client_host), {})
        same[pending] = None
        if len(same) > most_per_address:
            return next(iter(same))
        return next(iter(self._since)) if len(self._since) > most else None

    def discard(self, pending: PendingConnection) -> None:
        if self._since.pop(pending, None) is None:
            return
        address = one_client(pending.client_host)
        same = self._by_address[address]
        del same[pending]
        if not same:
            del self._by_address[address]

    def late(self, before: float) -> list[PendingConnection]:
        """Return those that were accepted before this time."""
        found = []
        for pending, since in self._since.items():
            if since >= before:
                break  # the rest is younger
            found.append(pending)
        return found
