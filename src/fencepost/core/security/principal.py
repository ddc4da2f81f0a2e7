"""A principal: the authenticated identity of a client, as Kafka names it (`User:alice`)."""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.errors import ConfigError

USER: Final = "User"


class Principal(NamedTuple):
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of every client of a listener that authenticates nobody."""


def parse_principal(text: str) -> Principal:
    """Parse TYPE:NAME; the name may contain further colons."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ConfigError(f"a principal must be TYPE:NAME, such as User:alice, not {text!r}")
    return Principal(kind, name)
