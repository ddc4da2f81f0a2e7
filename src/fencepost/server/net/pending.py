"""The connections that are not authenticated yet: in their TLS handshake, or before their login."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fencepost.server.config.addresses import one_client


class PendingConnection(Protocol):
    """A connection that is not authenticated yet."""

    @property
    def client_host(self) -> str: ...
    def refuse(self, why: str) -> None: ...


class PendingConnections:
    """They are few, in total and per address: of too many, the oldest makes way for the new one. Otherwise silent
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
