"""From an API key to its handler. The registry is the truth about what the server speaks: ApiVersions is answered
from it.

A handler is a function of the broker and a request. It answers with fields (encoded here, for the version asked), with
raw buffers (the hot APIs, which encode themselves), with a `Deferred` (accepted, the answer comes when a sync is over;
the connection goes on meanwhile), with None (no answer: acks = 0), or it is a coroutine for one of these; then
the connection works off nothing else until it is done, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fencepost.kernel.header import Buffer
from fencepost.server.net.request_memory import SMALL
from fencepost.wire import frame, messages

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.connection import Connection

Fields: TypeAlias = Mapping[str, Any]


class Deferred(NamedTuple):
    """The work is done, only the answer has to wait for `ready`; `finish` then makes it."""

    ready: asyncio.Future[None]
    finish: Callable[[], Fields | list[Buffer]]


Answer: TypeAlias = Fields | list[Buffer] | Deferred | None


class Request(NamedTuple):
    key: int
    version: int
    client_id: str | None
    message: Any
    """The decoded request: a kio entity, or the frame itself for raw handlers."""
    body_at: int
    connection: Connection


Handler: TypeAlias = Callable[["Broker", Request], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    versions: tuple[int, int]
    handle: Handler
    waits: bool = False
    """What it does when it takes long is wait, not change something: it is dropped when its client is gone."""
    raw: bool = False
    """The handler reads the frame and packs the answer itself (`wire.hot`)."""
    most_bytes: int = SMALL
    """Largest request; the server's max_request_bytes holds besides. Only Produce needs more than this default."""
    advertise_from: int | None = None
    """Lowest version told in ApiVersions where it differs from what is served (see k00_produce)."""


def encode(api: Api, version: int, correlation_id: int, answer: Fields | list[Buffer]) -> list[Buffer]:
    """The whole answer with its length in front."""
    head = frame.response_head(api.key, version, correlation_id)
    if isinstance(answer, list):
        return frame.framed([head, *answer])
    return frame.framed([head, messages.encode_response(api.key, version, answer)])
