"""The listener: it accepts connections on every port, closes idle ones, and lets all finish when the server stops."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from fencepost.core.security.principal import Principal
from fencepost.errors import FencepostError
from fencepost.server.api import APIS
from fencepost.server.api.k18_api_versions import unsupported_version
from fencepost.server.broker import Broker
from fencepost.server.config.addresses import parse_address
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.health import Chore
from fencepost.server.net.connection import Connection
from fencepost.server.net.limits import MOST_HTTP_CONNECTIONS, ConnectionLimits, PendingConnection, PendingConnections
from fencepost.server.net.request_memory import RequestMemory
from fencepost.server.net.router import Api, Fields
from fencepost.server.net.session import Session
from fencepost.server.process.tuning import most_connections

if TYPE_CHECKING:
    from fencepost.server.net.tls import ServerTls

logger = logging.getLogger(__name__)

_PATROL_SECONDS: Final = 1.0
STALLED_SECONDS: Final = 10.0
"""A connection whose half-sent request makes no progress for this long is closed while others wait for its memory."""
_BACKLOG: Final = 1024

Files: TypeAlias = dict[Path, tuple[int, ...]]
"""Files with all that changes when they are written or replaced."""


def make_tls(config: ListenerConfig) -> ServerTls | None:
    """Return the TLS of a listener, or raise WrongSetting; None for a listener without TLS."""
    if not config.encrypts:
        return None
    from fencepost.server.net.tls import ServerTls

    return ServerTls(config)


def look_at_files(config: ListenerConfig) -> Files:
    found: Files = {}
    for path in (config.certificate, config.key, config.client_ca):
        if path is not None:
            try:
                status = path.stat()
            except OSError:
                found[path] = ()
            else:
                found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


class Port:
    """The open socket of one named listener."""

    def __init__(self, config: ListenerConfig, accept: Callable[[Port], asyncio.BaseProtocol]) -> None:
        self.config = config
        """A reload replaces it; connections keep the settings that they were accepted with."""
        self.files = look_at_files(config)
        """The files of `tls` when it was made: looked at before they were read, so that no change is missed."""
        self.tls = make_tls(config)
        self._accept = accept
        self._server: asyncio.Server | None = None
        self.address = ""
        """HOST:PORT that it listens on, with the port that the system chose for port 0."""

    async def open(self) -> None:
        host, port = parse_address(self.config.address)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: self._accept(self), host, port, backlog=_BACKLOG)
        except OSError as error:
            reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise FencepostError(f"cannot listen on {self.config.address}: {reason}") from error
        bound = self._server.sockets[0].getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    def adopt(self, other: Port) -> None:
        """Take over another port's settings, and keep the socket."""
        self.config, self.files, self.tls = other.config, other.files, other.tls

    def close(self) -> None:
        """Accept no further connections; the accepted ones stay."""
        if self._server is not None:
            self._server.close()


class Listener:
    def __init__(self, broker: Broker, apis: Mapping[int, Api] = APIS) -> None:
        self.broker = broker
        self.apis = apis
        self.memory = RequestMemory(broker.config.request_memory)
        self.connections: set[Connection] = set()
        self.ports: dict[str, Port] = {}
        """By the names of their listeners."""
        self._limits = ConnectionLimits(broker)
        self._pending = PendingConnections()
        self._entered: dict[Connection, Principal] = {}
        """Authenticated connections that count for their users."""
        self.handshake_threads: ThreadPoolExecutor | None = None
        """Made by the first connection that needs them."""
        self._numbers = itertools.count(1)
        self._adopted: set[asyncio.Task[None]] = set()
        """Requests that run to their end although their clients have disconnected."""
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    async def start(self) -> dict[str, str]:
        """Open every port, and return the addresses that clients can connect to, by the listeners' names."""
        try:
            for config in self.broker.config.endpoints:
                port = Port(config, self._accept)
                await port.open()
                self.ports[config.name] = port
        except BaseException:
            for port in self.ports.values():
                port.close()
            raise
        self.broker.spawn(self._patrol(), "close idle connections")
        return {name: port.address for name, port in self.ports.items()}

    def _accept(self, port: Port) -> asyncio.BaseProtocol:
        connection = Connection(self, Session(port.config))
        if port.tls is None:
            return connection
        return port.tls.accept(connection, self)

    async def stop(self) -> None:
        """Accept no new connections, wait `drain_ms` for requests in progress, then close all connections."""
        for port in self.ports.values():
            port.close()
        for pending in self._pending:
            self._refuse_pending(pending, "the server stops")
        for connection in list(self.connections):
            connection.finish()
        await self.broker.groups.close()  # otherwise waiting JoinGroup requests would delay the stop
        try:
            await asyncio.wait_for(self._all_closed.wait(), self.broker.config.drain_ms / 1000)
        except TimeoutError:
            for connection in list(self.connections):
                connection.close()
            await self._all_closed.wait()
        if self.handshake_threads is not None:
            self.handshake_threads.shutdown(wait=False)
        if self._adopted:
            await asyncio.wait(self._adopted, timeout=self.broker.config.drain_ms / 1000)

    def adopt(self, task: asyncio.Task[None]) -> None:
        self._adopted.add(task)
        task.add_done_callback(self._adopted.discard)

    def next_number(self) -> int:
        return next(self._numbers)

    def accepts(self, client_host: str) -> str | None:
        """Count an accepted socket; return why it must be closed at once, or None."""
        return self._limits.accepted(client_host)

    def opened(self, connection: Connection) -> None:
        """Count a connection that can send requests, or only log in."""
        self.connections.add(connection)
        self.broker.counters.connections_accepted += 1
        self._all_closed.clear()
        config, session = self.broker.config, connection.session
        why = None if session.listener.encrypts else self.accepts(session.client_host)  # TLS has asked already
        why = self._limits.opened(session.client_host) or why
        if len(self.connections) > config.max_connections:
            why = f"max_connections ({config.max_connections}) are open"
        elif len(self.connections) > (most := self._most_connections()):
            why = f"{most} connections are open, and the logs need the other files that the process may open"
        if why is not None:
            connection.refuse(why)
        elif session.authenticated:
            self._enter(connection)
        else:
            self.wait_for(connection)

    def _most_connections(self) -> int:
        config = self.broker.config
        http = MOST_HTTP_CONNECTIONS if config.http_address is not None else 0
        return most_connections(config.max_connections, self.broker.handles.limit, http)

    def logged_in(self, connection: Connection) -> None:
        """Stop waiting for the login of a connection, and count it for its user."""
        self.settled(connection)
        if not connection.closed and connection not in self._entered:
            self._enter(connection)

    def _enter(self, connection: Connection) -> None:
        user = self._entered[connection] = connection.session.principal
        why = self._limits.entered(user)
        if why is not None:
            connection.refuse(why)

    def wait_for(self, pending: PendingConnection) -> None:
        """Close the connection if it is not settled in time, or if it becomes the oldest of too many."""
        config, now = self.broker.config, self.broker.clock.monotonic()
        oldest = self._pending.add(
            pending,
            now,
            most=config.max_pending_connections,
            most_per_address=config.max_pending_connections_per_address,
        )
        if oldest is not None:
            self._refuse_pending(oldest, "too many connections wait for authentication")

    def settled(self, pending: PendingConnection) -> None:
        """Stop waiting for a connection: it has authenticated, or is gone."""
        self._pending.discard(pending)

    def _refuse_pending(self, pending: PendingConnection, why: str) -> None:
        self._pending.discard(pending)
        pending.refuse(why)

    def _close_late(self) -> None:
        """Close the connections that take too long to authenticate."""
        seconds = self.broker.config.authentication_timeout_ms / 1000
        for pending in self._pending.late(self.broker.clock.monotonic() - seconds):
            self._refuse_pending(pending, f"not authenticated within {seconds:g} s")

    def lost(self, connection: Connection) -> None:
        self.settled(connection)
        if connection in self.connections:
            self._limits.closed(connection.session.client_host)
        if connection in self._entered:
            self._limits.left(self._entered.pop(connection))
        self.connections.discard(connection)
        if not self.connections:
            self._all_closed.set()

    def unsupported_version(self) -> Fields:
        return unsupported_version(self.apis)

    async def _patrol(self) -> None:
        while True:
            await asyncio.sleep(_PATROL_SECONDS)
            self.close_stalled()
            await self.reload_changed_certificates()

    def close_stalled(self) -> None:
        """Close idle connections, those that take too long to authenticate and, while others wait for memory, those
        that hold it and make too little progress."""
        self._close_late()
        self.broker.health.each(Chore.CONNECTIONS, list(self.connections), self._close_if_stalled)

    async def reload_changed_certificates(self) -> None:
        """Use certificates whose files have changed; keep the old ones while the new files cannot be used."""
        for port in list(self.ports.values()):
            if port.tls is None:
                continue
            config = port.config
            in_thread = asyncio.get_running_loop().run_in_executor
            with self.broker.health.watch(Chore.CERTIFICATES, config.name):
                files = await in_thread(self.broker.threads, look_at_files, config)
                if files == port.files:  # as before, or the old files are back
                    continue
                tls = await in_thread(self.broker.threads, make_tls, config)
                if port.config is config:  # no reload of the settings came in between
                    port.files, port.tls = files, tls
                    logger.info("listener %s uses changed certificates", config.name)

    async def change_ports(self, configs: Iterable[ListenerConfig]) -> list[str]:
        """Open, change and close ports, and return the names of the listeners that are not as before. Raise
        FencepostError before anything changes if a port cannot be opened or a certificate cannot be used.

        Connections stay, with the settings that they were accepted with."""
        wanted = {config.name: config for config in configs}
        opened: dict[str, Port] = {}
        changed: dict[str, Port] = {}
        try:
            for name, config in wanted.items():
                port = self.ports.get(name)
                if port is None or port.config.address != config.address:
                    opened[name] = Port(config, self._accept)
                    await opened[name].open()
                elif port.config != config:
                    changed[name] = Port(config, self._accept)  # only for its settings: the socket stays
        except BaseException:
            for port in opened.values():
                port.close()
            raise
        for name, port in changed.items():
            self.ports[name].adopt(port)
        gone = [name for name in self.ports if name not in wanted or name in opened]
        for name in gone:
            self.ports.pop(name).close()
        self.ports |= opened
        self.broker.health.keep_only(Chore.CERTIFICATES, self.ports)
        return [*changed, *opened, *(name for name in gone if name not in opened)]

    def _close_if_stalled(self, connection: Connection) -> None:
        config, now = self.broker.config, self.broker.clock.monotonic()
        silent = now - connection.last_progress
        if silent * 1000 > config.connection_idle_ms and connection.idle:
            logger.info("closing %s: idle for %.0f s", connection.peer, silent)
            connection.close()
        elif connection.is_late(now, STALLED_SECONDS):
            logger.warning("closing %s: too slow while other connections wait for memory", connection.peer)
            connection.close()
