"""Client quotas: which limit applies to a client, and how long it must wait. Rules without I/O.

An *entity* has the quotas: a user, a client id, both, or an IP address, each by name or as the default for all without
their own. Keys, combinations and refusals are Kafka's (tested with 4.3.1). `QuotaTable` has all quotas. The one that
applies to a client is the most specific one that has the key:

    user and client id; user and default client id; user;
    default user and client id; default user and default client id; default user;
    client id; default client id

A quota for a user and a client id, also by default, is for each pair of them. One for a user is shared by all its
client ids, and one for a client id by all its users. A default quota is not shared: each user or client id has its own.

A `TokenBucket` measures the use of one quota. It fills up at the quota's rate, and may be overdrawn. A client that has
overdrawn it is muted until it is full to zero again. This is what Kafka's rate over a window comes to: after a pause a
client may use the quota of a whole window at once.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from fencepost.errors import ErrorCode, ServerError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""Keys of users and client ids."""
IP_KEYS: Final = (CONNECTION_CREATION_RATE,)
_LARGEST_INTEGERS: Final = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""Maximum of the keys whose values are whole numbers."""
_NEARLY: Final = 1e-6
"""Kafka takes a value for whole that is this close to it."""
MOST_NAME_CHARACTERS: Final = 1024

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted by type; the name None means the default."""


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(parts.items()))


def stored_name(kind: str, name: str | None) -> str | None:
    """Return the one spelling of a name: an IP address has several, such as 2001:DB8:0::1 and 2001:db8::1."""
    if kind != IP or name is None:
        return name
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def stored_entity(entity: Entity) -> Entity:
    return tuple((kind, stored_name(kind, name)) for kind, name in entity)


def describe_entity(entity: Entity) -> str:
    """Return an entity in words, for messages."""
    return ", ".join(f"{kind} {name!r}" if name is not None else f"default {kind}" for kind, name in entity)


def check_entity(entity: Entity) -> None:
    """Raise ServerError if there cannot be quotas for this entity."""
    if not entity:
        raise _invalid(f"a quota must be for at least one of {', '.join(TYPES)}")
    kinds = [kind for kind, _ in entity]
    for kind, name in entity:
        if kind not in TYPES:
            raise _invalid(f"unknown type of quota entity {kind!r}; use {', '.join(TYPES)}")
        if name == "":
            raise _invalid(f"the name of a {kind} must not be empty; leave it out (null) for the default")
        if name is not None and len(name) > MOST_NAME_CHARACTERS:
            raise _invalid(f"the name of a {kind} must have at most {MOST_NAME_CHARACTERS} characters")
    if IP in kinds and len(kinds) > 1:
        raise _invalid("a quota for an ip cannot be combined with a user or client-id")
    address = dict(entity).get(IP)
    if address is not None:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise _invalid(f"{address!r} is not an IP address") from None


def keys_of(entity: Entity) -> tuple[str, ...]:
    """Return the keys that quotas of this entity can have."""
    return IP_KEYS if entity and entity[0][0] == IP else CLIENT_KEYS


def check_value(entity: Entity, key: str, value: float) -> float:
    """Return the value to store; raise ServerError if the quota cannot have it."""
    if key not in keys_of(entity):
        raise _invalid(f"{key!r} is no quota for {describe_entity(entity)}; use {', '.join(keys_of(entity))}")
    if not math.isfinite(value):
        raise _invalid(f"{key} must be a finite number, not {value}")
    if value <= 0:
        raise _invalid(f"{key} must be greater than 0, not {value:g}")
    largest = _LARGEST_INTEGERS.get(key)
    if largest is None:
        return value
    if value > largest:
        raise _invalid(f"{key} must be at most {largest}, not {value:g}")
    if abs(value - round(value)) > _NEARLY:
        raise _invalid(f"{key} must be a whole number, not {value}")
    return float(round(value))


class Match(IntEnum):
    """How a filter compares the name of a type."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class Component(NamedTuple):
    """One condition of a filter: the entity has this type, with a name that fits."""

    kind: str
    match: int
    name: str | None


class Filter(NamedTuple):
    components: tuple[Component, ...]
    strict: bool
    """The entity has no other types than those of the components."""

    def check(self) -> None:
        """Raise ServerError for a filter that makes no sense."""
        kinds: set[str] = set()
        for kind, match, name in self.components:
            if not kind:
                raise _invalid("the entity type of a filter must not be empty")
            if kind in kinds:
                raise _invalid(f"the filter names the entity type {kind!r} more than once")
            if kind not in TYPES:
                reason = f"unknown type of quota entity {kind!r}; use {', '.join(TYPES)}"
                raise ServerError(ErrorCode.UNSUPPORTED_VERSION, reason)
            kinds.add(kind)
            if match not in tuple(Match):
                raise _invalid(f"the match type must be 0 (exact), 1 (default) or 2 (any), not {match}")
            if (match == Match.EXACT) != (name is not None):
                raise _invalid("a filter must have a name if the match type is 0 (exact), and only then")
        if IP in kinds and len(kinds) > 1:
            raise _invalid("a filter for an ip cannot be combined with a user or client-id")

    def fits(self, entity: Entity) -> bool:
        if self.strict and len(entity) != len(self.components):
            return False
        parts = dict(entity)
        return all(
            kind in parts and (match == Match.ANY or parts[kind] == name) for kind, match, name in self.components
        )


def read_filter(components: Iterable[Component], *, strict: bool) -> Filter:
    found = Filter(tuple(components), strict)
    found.check()
    return found


def _invalid(reason: str) -> ServerError:
    return ServerError(ErrorCode.INVALID_REQUEST, reason)


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


MAX_OVERDRAWN_SECONDS: Final = 3600.0
"""A bucket can be overdrawn by what its rate gives in this time, so that one huge request does not mute for days."""


class TokenBucket:
    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """`rate`: units per second. `burst`: the seconds in which an empty bucket becomes full."""
        self._rate = rate
        self._burst = burst
        self._level = rate * burst
        self._at = now

    def change(self, rate: float, burst: float, now: float) -> None:
        """Use another rate from now on. What is overdrawn stays so."""
        if rate != self._rate or burst != self._burst:
            self._fill(now)
            self._rate, self._burst = rate, burst
            self._limit()

    def spend(self, amount: float, now: float) -> float:
        """Take out `amount` units, and return the seconds that the client must wait; 0.0 if it need not."""
        self._fill(now)
        self._level -= amount
        self._limit()
        return -self._level / self._rate if self._level < 0 else 0.0

    def is_available(self, now: float) -> bool:
        """Tell if the bucket is neither empty nor overdrawn."""
        self._fill(now)
        return self._level > 0

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self._level + (now - self._at) * self._rate, self._rate * self._burst)
            self._at = now

    def _limit(self) -> None:
        self._level = max(min(self._level, self._rate * self._burst), -self._rate * MAX_OVERDRAWN_SECONDS)
