"""The quotas of clients in the metadata store, and what clients have used of them. The rules are in `core.quotas`."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from fencepost.clock import Clock
from fencepost.core.quotas import Entity, Limit, QuotaTable, Share, TokenBucket
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.storage.store import Statement, Store

SCHEMA: Final = (
    # An entity is a JSON list of [type, name], sorted by type; the name null means the default.
    """CREATE TABLE IF NOT EXISTS client_quotas (
        entity TEXT NOT NULL, key TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (entity, key)
    ) WITHOUT ROWID""",
)
_SELECT: Final = "SELECT entity, key, value FROM client_quotas"
_SAVE: Final = "INSERT OR REPLACE INTO client_quotas (entity, key, value) VALUES (?, ?, ?)"
_DELETE: Final = "DELETE FROM client_quotas WHERE entity = ? AND key = ?"
MOST_QUOTAS: Final = 20_000
_MOST_BUCKETS: Final = 20_000
"""Clients whose use is remembered; the one that was idle longest is forgotten first. Clients choose their client ids,
so there could be any number. Quotas of users alone are remembered apart, where client ids cannot flush them out."""


class QuotaChange(NamedTuple):
    """A quota to set, or to remove if the value is None."""

    entity: Entity
    key: str
    value: float | None


class Quotas:
    """All quotas, in memory and in the store. Used only on the event loop."""

    def __init__(self, store: Store, clock: Clock, burst: Callable[[], float]) -> None:
        """`burst` returns the seconds' worth of a quota that a client may use at once."""
        self._store = store
        self._monotonic = clock.monotonic
        self._burst = burst
        self.table = QuotaTable((_read(text), key, value) for text, key, value in store.query(_SELECT))
        self.is_active = self.table.limits_clients
        """There is a quota for some user or client id; every request looks at this."""
        self.throttled_seconds = 0.0
        """Time for which connections were muted, since the start of the server."""
        self._buckets: OrderedDict[Share, TokenBucket] = OrderedDict()
        self._of_users: OrderedDict[Share, TokenBucket] = OrderedDict()

    def spend(self, limit: Limit, amount: float) -> float:
        """Count use, and return the seconds that the client must wait."""
        now = self._monotonic()
        return self._bucket(limit, now).spend(amount, now)

    def is_available(self, limit: Limit) -> bool:
        """Tell if the quota is not used up."""
        now = self._monotonic()
        return self._bucket(limit, now).is_available(now)

    def _bucket(self, limit: Limit, now: float) -> TokenBucket:
        burst = self._burst()
        buckets = self._of_users if limit.share[2] is None else self._buckets
        found = buckets.get(limit.share)
        if found is None:
            found = buckets[limit.share] = TokenBucket(limit.rate, burst, now)
            if len(buckets) > _MOST_BUCKETS:
                buckets.popitem(last=False)
        else:
            buckets.move_to_end(limit.share)
            found.change(limit.rate, burst, now)
        return found

    async def alter(self, changes: Sequence[QuotaChange]) -> None:
        """Store all changes or none, then apply them."""
        changes = [each for each in changes if self.table.get(each.entity).get(each.key) != each.value]
        if not changes:
            return
        new = sum(each.value is not None and each.key not in self.table.get(each.entity) for each in changes)
        if new and len(self.table) + new > MOST_QUOTAS:
            raise ServerError(ErrorCode.POLICY_VIOLATION, f"there can be at most {MOST_QUOTAS} quotas")
        await self._store.execute([_statement(each) for each in changes], frees=not new)
        self._apply(changes)

    def _apply(self, changes: Iterable[QuotaChange]) -> None:
        for change in changes:
            self.table.set(*change)
        self.is_active = self.table.limits_clients


def _read(text: str) -> Entity:
    return tuple((kind, name) for kind, name in json.loads(text))


def _statement(change: QuotaChange) -> Statement:
    entity = json.dumps(change.entity)
    if change.value is None:
        return _DELETE, (entity, change.key)
    return _SAVE, (entity, change.key, change.value)
