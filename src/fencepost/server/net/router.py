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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fencepost.core.security.access import Need
from fencepost.core.security.acls import CLUSTER_NAME, ResourceType
from fencepost.errors import ServerError
from fencepost.kernel.header import Buffer
from fencepost.server.net.request_memory import SMALL
from fencepost.types import Milliseconds
from fencepost.wire import frame, messages

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.connection import Connection
    from fencepost.server.net.session import Session

Fields: TypeAlias = Mapping[str, Any]


NOT_AUTHORIZED: Final = "not authorized"
"""The message of a refusal that must not name the resource."""


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

    @property
    def session(self) -> Session:
        """Return the client's session, which knows its principal."""
        return self.connection.session

    def may(self, need: Need, name: str = CLUSTER_NAME) -> bool:
        """Tell if the client has the permission on this resource, which must be listed in `NEEDS`. A refusal goes to
        the audit log."""
        if self.connection.authorizer.allows(self.key, self.connection.session, need, name):
            return True
        self.connection.denied(self.key, need, name)
        return False

    def sees(self, need: Need, name: str = CLUSTER_NAME) -> bool:
        """Tell the same where a refusal denies the client nothing that it has asked for: in a list it only leaves out
        the resource, or another permission suffices."""
        return self.connection.authorizer.allows(self.key, self.connection.session, need, name)

    def may_on_some(self, need: Need) -> bool:
        """Tell if the client may have the permission on some resource. It must be listed in `NEEDS`."""
        return self.connection.authorizer.allows_some(self.key, self.connection.session, need)

    def refusal(self, need: Need, name: str = CLUSTER_NAME) -> str:
        """Return the message for a client that does not have the permission. It tells nothing that the client has not
        sent, so also not whether the resource exists."""
        kind = need.resource_type.name.lower().replace("_", " ")
        what = "the cluster" if need.resource_type is ResourceType.CLUSTER else f"{kind} {name}"
        return f"{self.session.principal} may not {need.operation.name} {what}"

    def require(self, need: Need, name: str = CLUSTER_NAME) -> None:
        """Raise ServerError if the client does not have the permission on this resource."""
        if not self.may(need, name):
            raise ServerError(need.refusal, self.refusal(need, name))

    def throttle_ms(self, key: str, amount: int) -> Milliseconds:
        """Count what the request has used of a quota, and return the throttle time for the answer."""
        throttle = self.connection.throttle
        if not throttle.is_active:
            return 0
        throttle.charge(key, amount)
        return throttle.settle()

    def count_mutations(self, partitions: int, *, strict_from: int) -> None:
        """Count partitions that the request is about to create or delete. From version `strict_from` on, raise
        ServerError if the client's quota is used up; older clients are only muted (KIP-599)."""
        self.connection.throttle.charge_mutations(partitions, strict=self.version >= strict_from)

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the client may perform on this resource, as Kafka's bit field."""
        return self.connection.authorizer.operations(self.connection.session, kind, name)


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
