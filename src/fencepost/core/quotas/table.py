"""The table of all quotas, and the quota that applies to a client: the most specific one that has the key.

    user and client id; user and default client id; user;
    default user and client id; default user and default client id; default user;
    client id; default client id

A quota for a user and a client id, also by default, is for each pair of them. One for a user is shared by all its
client ids, and one for a client id by all its users. A default quota is not shared: each user or client id has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from fencepost.core.quotas.entities import CLIENT_ID, IP, IP_KEYS, USER, Entity, Filter, stored_name

Share: TypeAlias = tuple[str, str | None, str | None]
"""Who uses a quota together: its key, the user and the client id; None for all of them."""


class Limit(NamedTuple):
    rate: float
    share: Share


_DEFAULT: Final = None


class QuotaTable:
    def __init__(self, rows: Iterable[tuple[Entity, str, float]] = ()) -> None:
        self._values: dict[Entity, dict[str, float]] = {}
        self.version = 0
        """Grows with every change."""
        self._counts: dict[str, int] = {}
        """Number of quotas by key, so that a client pays nothing for keys without quotas."""
        for entity, key, value in rows:
            self.set(entity, key, value)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        return iter(self._values.items())

    def get(self, entity: Entity) -> Mapping[str, float]:
        return self._values.get(entity, {})

    def set(self, entity: Entity, key: str, value: float | None) -> None:
        """Set a quota, or remove it if the value is None."""
        self.version += 1
        known = self._values.setdefault(entity, {})
        self._counts[key] = self._counts.get(key, 0) + (value is not None) - (key in known)
        if value is not None:
            known[key] = value
            return
        known.pop(key, None)
        if not known:
            del self._values[entity]

    def matching(self, wanted: Filter) -> list[tuple[Entity, Mapping[str, float]]]:
        return [(entity, values) for entity, values in self._values.items() if wanted.fits(entity)]

    @property
    def limits_clients(self) -> bool:
        """Tell if there is a quota for any user or client id."""
        return any(number for key, number in self._counts.items() if key not in IP_KEYS)

    def of_client(self, user: str, client_id: str, key: str) -> Limit | None:
        """Return the quota that applies to a client."""
        if not self._counts.get(key):
            return None
        pair: Share = (key, user, client_id)
        candidates: tuple[tuple[Entity, Share], ...] = (
            (((CLIENT_ID, client_id), (USER, user)), pair),
            (((CLIENT_ID, _DEFAULT), (USER, user)), pair),
            (((USER, user),), (key, user, None)),
            (((CLIENT_ID, client_id), (USER, _DEFAULT)), pair),
            (((CLIENT_ID, _DEFAULT), (USER, _DEFAULT)), pair),
            (((USER, _DEFAULT),), (key, user, None)),
            (((CLIENT_ID, client_id),), (key, None, client_id)),
            (((CLIENT_ID, _DEFAULT),), (key, None, client_id)),
        )
        for entity, share in candidates:
            rate = self.get(entity).get(key)
            if rate is not None:
                return Limit(rate, share)
        return None

    def of_address(self, address: str, key: str) -> float | None:
        """Return the quota that applies to an IP address."""
        if not self._counts.get(key):
            return None
        own = self.get(((IP, stored_name(IP, address)),)).get(key)
        return own if own is not None else self.get(((IP, _DEFAULT),)).get(key)
