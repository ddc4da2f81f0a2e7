"""What may become of a request: the words a test scripts a cluster, or a proxy, with."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from fencepost.errors import ErrorCode
from fencepost.wire.apis import Key

Api: TypeAlias = Key
"""As tests say it: `Api.PRODUCE`."""


class Fate(Enum):
    """What becomes of a request."""

    ANSWER = "answer"
    """Carried out and answered."""
    SWALLOW = "swallow"
    """Carried out, but the answer never comes."""
    CUT = "cut"
    """Carried out, but instead of the answer the connection ends."""
    LOSE = "lose"
    """Not carried out, and the connection ends."""
    IGNORE = "ignore"
    """Not carried out, and never answered: the server is stopped, and the line holds."""
    DUPLICATE = "duplicate"
    """Carried out twice, answered once."""


class Delayed(NamedTuple):
    """Carried out at once, answered after so many seconds."""

    seconds: float


class Late(NamedTuple):
    """The connection ends for the client, who hears nothing more; the server still has what was sent over it, carries
    it out so many seconds later, and only then notices the end."""

    seconds: float


class Refused(NamedTuple):
    """Produce only: not carried out, every partition is answered with this error."""

    code: ErrorCode


Script: TypeAlias = Fate | Delayed | Late | Refused


class Request(NamedTuple):
    node: int
    key: int
    version: int
    message: Any
    """kio's entity, or a `hot.ProduceRequest` or `hot.FetchRequest`."""
