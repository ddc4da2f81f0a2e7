"""The API registry's types: an `Api` names its key, versions and handler. ApiVersions is answered from the registry.

A handler takes the broker and a request, and returns one of:

- fields, which `encode` packs for the requested version;
- raw buffers (the hot APIs encode their answers themselves);
- a `Deferred`: the work is done and the answer follows after a sync, while the connection continues;
- None: no answer (acks = 0);
- an awaitable of one of these: the connection starts no other request until it is done, as in Kafka.
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
    """An answer that waits for `ready` although the work is done; `finish` then makes it."""

    ready: asyncio.Future[None]
    finish: Callable[[], Fields | list[Buffer]]


Answer: TypeAlias = Fields | list[Buffer] | Deferred | None


class ApiRequest(NamedTuple):
    key: int
    version: int
    client_id: str | None
    message: Any
    """The decoded request: a kio entity, or the frame itself for raw handlers."""
    body_at: int
    connection: Connection


Handler: TypeAlias = Callable[["Broker", ApiRequest], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    versions: tuple[int, int]
    handle: Handler
    waits: bool = False
    """The handler only waits and changes nothing, so it is safe to cancel when the client leaves."""
    raw: bool = False
    """The handler reads the frame and packs the answer itself (`wire.hot`)."""
    most_bytes: int = SMALL
    """Maximum size of a request, besides the server's max_request_bytes. Only Produce needs more than the default."""
    advertise_from: int | None = None
    """Minimum version in ApiVersions, if it differs from `versions` (see k00_produce)."""


def encode(api: Api, version: int, correlation_id: int, answer: Fields | list[Buffer]) -> list[Buffer]:
    """Return the encoded answer with its header and length."""
    head = frame.response_head(api.key, version, correlation_id)
    if isinstance(answer, list):
        return frame.framed([head, *answer])
    return frame.framed([head, messages.encode_response(api.key, version, answer)])
