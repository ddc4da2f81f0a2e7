"""Blocking requests of other threads over an owner's connection.

The steps of a transaction (`client/transactions/coordinator.py`) send one request at a time and normally have their own
channels. For an owner the connection matters: only the owner's connection may add a partition of a guarded topic to a
transaction, and a transaction ends with its owner only if it came over the owner's connection (OWN-9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import Channel, Reply
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.sender import Sender
from fencepost.errors import FencepostError, Unreachable

T = TypeVar("T")


class SharedChannel(Channel):
    def __init__(self, address: Address, sender: Sender) -> None:
        super().__init__(address)
        self._sender = sender

    def request(
        self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, reconnect: bool = True
    ) -> Reply:
        outcome: Future[Reply] = Future()

        def ask() -> None:
            connection = self._sender.owner_connection()
            version = connection.version(key, at_most)

            def answered(answer: Any) -> None:
                outcome.set_result(Reply(version, answer))

            def lost(error: FencepostError, left: bool) -> None:
                outcome.set_exception(Unreachable(str(error)))

            connection.ask(key, fields, answered, lost, at_most=at_most)

        self._sender.call(ask)
        return outcome.result()

    def versions(self) -> Mapping[int, tuple[int, int]]:
        return self._sender.call(lambda: dict(self._sender.owner_connection().versions))

    def close(self) -> None:
        """Leave the connection open: it belongs to the owner."""


class SharedRoutes(Routes):
    """Routes that all lead to the server of the owner's connection."""

    def __init__(self, settings: ClientSettings, sender: Sender) -> None:
        super().__init__(settings)
        self._shared = SharedChannel(settings.servers[0], sender)

    def channel(self, address: Address) -> Channel:
        return self._shared

    def whoever(self, call: Callable[[Channel], T], first: Iterable[Address] = ()) -> T:
        return call(self._shared)
