"""The listener: it accepts connections, closes idle ones, and lets all finish when the server stops."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections.abc import Mapping
from typing import Final

from fencepost.errors import FencepostError
from fencepost.server.api import APIS
from fencepost.server.api.k18_api_versions import unsupported_version
from fencepost.server.broker import Broker
from fencepost.server.health import Chore
from fencepost.server.net.connection import Connection
from fencepost.server.net.request_memory import RequestMemory
from fencepost.server.net.router import Api, Fields
from fencepost.server.settings import parse_address

logger = logging.getLogger(__name__)

_PATROL_SECONDS: Final = 1.0


class Listener:
    def __init__(self, broker: Broker, apis: Mapping[int, Api] = APIS) -> None:
        self.broker = broker
        self.apis = apis
        self.memory = RequestMemory(broker.config.request_memory)
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._numbers = itertools.count(1)
        self._adopted: set[asyncio.Task[None]] = set()
        """Requests that run to their end although their clients have disconnected."""
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    async def start(self) -> str:
        """Listen, and return the address that clients can connect to."""
        host, port = parse_address(self.broker.config.listen)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        except OSError as error:
            reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise FencepostError(f"cannot listen on {self.broker.config.listen}: {reason}") from error
        bound = self._server.sockets[0].getsockname()
        self.broker.spawn(self._patrol(), "close idle connections")
        return f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        """Accept no new connections, wait `drain_ms` for requests in progress, then close all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.finish()
        await self.broker.groups.close()  # otherwise waiting JoinGroup requests would delay the stop
        try:
            await asyncio.wait_for(self._all_closed.wait(), self.broker.config.drain_ms / 1000)
        except TimeoutError:
            for connection in list(self.connections):
                connection.close()
            await self._all_closed.wait()
        if self._adopted:
            await asyncio.wait(self._adopted, timeout=self.broker.config.drain_ms / 1000)

    def adopt(self, task: asyncio.Task[None]) -> None:
        self._adopted.add(task)
        task.add_done_callback(self._adopted.discard)

    def next_number(self) -> int:
        return next(self._numbers)

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        self._all_closed.clear()
        if len(self.connections) > self.broker.config.max_connections:
            logger.warning("closing %s: max_connections (%d) are open", connection.peer, len(self.connections) - 1)
            connection.close()

    def lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_closed.set()

    def unsupported_version(self) -> Fields:
        return unsupported_version(self.apis)

    async def _patrol(self) -> None:
        while True:
            await asyncio.sleep(_PATROL_SECONDS)
            self.close_stalled()

    def close_stalled(self) -> None:
        """Close idle connections and, while others wait for memory, those that hold it and make too little progress."""
        self.broker.health.each(Chore.CONNECTIONS, list(self.connections), self._close_if_stalled)

    def _close_if_stalled(self, connection: Connection) -> None:
        config, now = self.broker.config, self.broker.clock.monotonic()
        silent = now - connection.last_progress
        if silent * 1000 > config.connection_idle_ms and connection.idle:
            logger.info("closing %s: idle for %.0f s", connection.peer, silent)
            connection.close()
        elif connection.is_late(now, config.stalled_frame_ms / 1000):
            logger.warning("closing %s: too slow while other connections wait for memory", connection.peer)
            connection.close()
