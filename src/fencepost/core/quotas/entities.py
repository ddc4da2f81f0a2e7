"""Entities of quotas: a user, a client id, both, or an IP address, each by name or as the default for all without their
own. Keys, combinations and refusals are Kafka's (tested with 4.3.1).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
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
