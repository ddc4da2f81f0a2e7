"""The fates of a request: what a test can script a cluster or a proxy to do with it."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from fencepost.errors import ErrorCode
from fencepost.wire.apis import Key

Api: TypeAlias = Key
"""The name that tests use: `Api.PRODUCE`."""


class Fate(Enum):
    """The fate of a request."""

    ANSWER = "answer"
    """The server carries it out and answers."""
    SWALLOW = "swallow"
    """The server carries it out, but the answer is lost."""
    CUT = "cut"
    """The server carries it out, and the connection closes instead of the answer."""
    LOSE = "lose"
    """The server does not carry it out, and the connection closes."""
    IGNORE = "ignore"
    """The server neither carries it out nor answers, as if it were paused; the connection stays open."""
    DUPLICATE = "duplicate"
    """The server carries it out twice and answers once."""


class DelayedAnswer(NamedTuple):
    """The server carries the request out at once, and answers after `seconds`."""

    seconds: float


class Late(NamedTuple):
    """The connection closes for the client at once. The server carries the request out after `seconds`, and only then
    notices the end of the connection."""

    seconds: float


class ErrorAnswer(NamedTuple):
    """Produce and InitProducerId only: the server does not carry the request out, and answers (every partition) with
    this error. `appended`: it carries a Produce out first, as a leader of Apache Kafka that loses its leadership while
    it waits for its followers."""

    code: ErrorCode
    appended: bool = False


Script: TypeAlias = Fate | DelayedAnswer | Late | ErrorAnswer


class ScriptedRequest(NamedTuple):
    node: int
    key: int
    version: int
    message: Any
    """A kio entity, or a `hot.ProduceRequest` or `hot.FetchRequest`."""
    connection: int = 0
    """The client's connection that it came over, numbered from 0 in the order of dialling."""
