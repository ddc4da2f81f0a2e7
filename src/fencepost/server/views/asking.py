"""Calls of the handlers behind the Kafka APIs, in the name of an HTTP client.

The HTTP API and the console have no rules of their own: they ask the handlers that answer Kafka's clients, or
`ApiRequest.sees`, so they check the same ACLs, write the same audit log and give the same numbers as the command line.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from fencepost.core.security.access import Need
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.api import APIS
from fencepost.server.config.addresses import parse_address
from fencepost.server.net.router import ApiRequest, Deferred, Fields
from fencepost.server.net.session import Client, Session
from fencepost.server.net.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.server.broker import Broker
    from fencepost.server.net.connection import Connection
    from fencepost.server.net.listener import Listener
    from fencepost.server.security.authorizer import Authorizer
    from fencepost.server.views.snapshot import Snapshots

T = TypeVar("T")


class HttpCaller(NamedTuple):
    """The part of a client's connection that a handler needs."""

    broker: Broker
    listener: Listener
    client: Client
    snapshots: Snapshots
    turns: Turns
    """One page may ask thousands of times, each time for little."""

    @property
    def session(self) -> Session:
        return self.client.session

    @property
    def peer(self) -> str:
        return self.client.peer

    @property
    def client_id(self) -> str:
        return self.client.client_id

    @property
    def severed(self) -> bool:
        """HTTP clients own nothing, so nobody severs them."""
        return False

    @property
    def number(self) -> int:
        """A number as of a connection that was opened now: what it asks for cannot be an older, delayed request."""
        return self.listener.next_number()

    @property
    def authorizer(self) -> Authorizer:
        return self.broker.authorizer

    @property
    def dialled(self) -> tuple[str, int]:
        """The address of the first Kafka listener: the HTTP client has dialled none."""
        port = next(iter(self.listener.ports.values()))
        return parse_address(port.config.advertise or port.address)

    def denied(self, key: int, need: Need, name: str) -> None:
        self.broker.audit.denied(self.client, APIS[key].name, need, name)

    def request(self, key: int, message: object = None) -> ApiRequest:
        """Return a request of the newest version, for its checks of permissions or for a handler."""
        connection = cast("Connection", self)
        return ApiRequest(key, APIS[key].versions[1], self.client.client_id, message, 0, connection)

    async def ask(self, key: int, judge: Callable[[], None] | None = None, **fields: Any) -> Fields:
        """Return the answer of an API to these fields. Raise ServerError if the answer as a whole is an error.

        `judge` is called right before the handler, so nothing happens between the two; it may raise."""
        await self.turns()
        message = _message(fields)
        if judge is not None:
            judge()
        answer = APIS[key].handle(self.broker, self.request(key, message))
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Deferred):
            await asyncio.wait([answer.ready])
            answer = answer.finish()
        assert isinstance(answer, Mapping)
        check(answer, APIS[key].name)
        return answer

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do work that waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.broker.threads, work)


def _message(value: Any) -> Any:
    """Return the fields as handlers read them: `message.topics[0].name`."""
    if isinstance(value, Mapping):
        return SimpleNamespace(**{name: _message(item) for name, item in value.items()})
    return [_message(item) for item in value] if isinstance(value, list) else value


def check(row: Fields, what: str) -> None:
    """Raise ServerError if a row of an answer is an error; `what` names the thing that was asked for."""
    code = row.get("error_code", ErrorCode.NONE)
    if code != ErrorCode.NONE:
        assert isinstance(code, ErrorCode)
        raise ServerError(code, row.get("error_message") or f"{what}: {code.name}")
