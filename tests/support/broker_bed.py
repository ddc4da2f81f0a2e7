"""A broker without a listener, asked as its connections would ask it: the base of the beds of tests/unit/server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from fencepost.log.files import OsFiles
from fencepost.server.api import APIS
from fencepost.server.broker import Broker
from fencepost.server.config.settings import ServerConfig
from fencepost.server.net.connection import Connection
from fencepost.server.net.listener import Listener
from fencepost.server.net.router import ApiRequest, Fields
from fencepost.server.net.session import Session
from fencepost.wire import messages
from tests.support.clock import HandWoundClock

B = TypeVar("B", bound="BrokerBed")


class BrokerBed:
    """The broker with a hand-wound clock, restarted at will, and connections without sockets."""

    def __init__(
        self, data: Path, *, sync: Literal["os", "always"] = "os", files: OsFiles | None = None, **settings: Any
    ) -> None:
        self.clock = HandWoundClock()
        self._config = ServerConfig(data=data, sync=sync, **settings)
        self._files = files
        self._create_broker()

    def _create_broker(self) -> None:
        self.broker = Broker(self._config, clock=self.clock, files=self._files)
        self._listener = Listener(self.broker)

    async def restart(self) -> None:
        await self.broker.close()
        self._create_broker()
        await self.broker.start()

    def connect(self) -> Connection:
        return Connection(self._listener, Session(self._config.endpoints[0]))

    async def call(self, connection: Connection, key: int, version: int, **fields: Any) -> Fields:
        """Let the broker handle a request of the connection, and return the fields of its answer."""
        message = messages.decode_request(key, version, messages.encode_request(key, version, fields))
        request = ApiRequest(key, version, None, message, 0, connection)
        answer = cast("Fields | Awaitable[Fields]", APIS[key].handle(self.broker, request))
        return await answer if isinstance(answer, Awaitable) else answer


@asynccontextmanager
async def running(
    make_bed: Callable[[], B], partitions: int = 1, configs: Mapping[str, str] | None = None
) -> AsyncIterator[B]:
    """Run a broker that has one topic, t."""
    bed = make_bed()
    await bed.broker.start()
    try:
        await bed.broker.topics.create("t", partitions, dict(configs or {}))
        yield bed
    finally:
        await bed.broker.close()
