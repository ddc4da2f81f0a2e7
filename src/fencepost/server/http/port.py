"""The HTTP port: uvicorn on the server's own loop."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from fencepost.errors import FencepostError
from fencepost.server.config.addresses import parse_address
from fencepost.server.http.app import make_app
from fencepost.server.http.console.page import Streams
from fencepost.server.net.limits import MOST_HTTP_CONNECTIONS
from fencepost.server.net.tls import make_context

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener

_LENGTHS: Final = {b"content-length", b"transfer-encoding"}
_PIPELINED_SECONDS: Final = 1.0
"""Pause before a request that was sent too early."""
_KEPT_PLACES: Final = 20
"""Connections beyond the limit, if all others are busy: for a probe of the server's health."""
SILENT_SECONDS: Final = 10.0
"""Time for a TLS handshake, and for the next whole request of a connection."""
_STOP_SECONDS: Final = 2
"""How long the stopping server waits for answers that are under way."""


class _Protocol(H11Protocol):
    """It closes a connection that does not send a whole request or does not read its answers in time, and one of too
    many: those that make no use of their connections must not keep others out."""

    _idle_since = 0.0
    _seen: object = None
    """The request that was there at the last look."""
    _unread = 0
    """Bytes of answers that the client had not read at the last look."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._idle_since = loop.time()
        loop.call_later(SILENT_SECONDS, self._look)
        if len(self.connections) > MOST_HTTP_CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        """Close the connection of which least use is made, of the address that has most of them."""
        others = [each for each in self.connections if isinstance(each, _Protocol) and each is not self]
        useless = [each for each in others if each._is_idle or each._waits_for_client]
        if useless:
            numbers = Counter(each._address for each in others)
            last = min(useless, key=lambda each: (-numbers[each._address], each._idle_since))
        elif len(self.connections) > MOST_HTTP_CONNECTIONS + _KEPT_PLACES:
            last = self
        else:
            return
        last.transport.abort()  # `close` would wait until the client has read what was sent

    def on_response_complete(self) -> None:
        """Go on with the next request. One that was sent before the answer to the last waits: no browser or probe does
        that, and thousands of them would keep the loop busy."""
        if self.conn.trailing_data[0] and not self.transport.is_closing():
            asyncio.get_running_loop().call_later(_PIPELINED_SECONDS, super().on_response_complete)
        else:
            super().on_response_complete()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _waits_for_client(self) -> bool:
        """The client has not sent its whole request, or does not read the answer."""
        cycle: RequestResponseCycle | None = self.cycle
        return bool(self.flow.write_paused) or (cycle is not None and cycle.more_body)

    @property
    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        unread = self.transport.get_write_buffer_size()
        if unread and unread == self._unread:
            self.transport.abort()
            return
        if self._is_idle and self.cycle is self._seen:
            self.transport.close()
            return
        self._unread = unread
        if self.cycle is not self._seen:
            self._idle_since = asyncio.get_running_loop().time()
        self._seen = self.cycle
        asyncio.get_running_loop().call_later(SILENT_SECONDS, self._look)


class Proxied:
    """The application behind a proxy that ends TLS (`http.public_url`).

    The browser speaks HTTPS and the server hears HTTP, so the origin that the browser names would never be the server's
    own: the login form would be refused, and its cookie would lack the protection of HTTPS. A request for the public
    name is therefore taken for what it was before the proxy."""

    def __init__(self, app: ASGIApp, url: str) -> None:
        self._app = app
        self._scheme = urlsplit(url).scheme
        self._host = urlsplit(url).netloc.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"host") == self._host:
            scope = {**scope, "scheme": self._scheme}
        await self._app(scope, receive, send)


class OneLength:
    """The application, without requests that say their length in two ways: a proxy that believes the other one takes a
    part of the body for the next request, perhaps of another user."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and {name for name, _ in scope["headers"]} >= _LENGTHS:
            text = "Content-Length and Transfer-Encoding in one request\n"
            await PlainTextResponse(text, 400, headers={"Connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _Uvicorn(uvicorn.Server):
    """It leaves signals to the process, and sleeps until it is told to stop instead of ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. As uvicorn does it, but with a limit on the time of TLS handshakes."""
        config, loop = self.config, asyncio.get_running_loop()
        make = partial(_Protocol, config=config, server_state=self.server_state, app_state=self.lifespan.state)
        timeout = SILENT_SECONDS if config.ssl is not None else None
        self.servers = [
            await loop.create_server(make, sock=each, ssl=config.ssl, ssl_handshake_timeout=timeout)
            for each in sockets or ()
        ]
        self.started = True

    async def main_loop(self) -> None:
        self.listening.set()
        await self._stopping.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()


class HttpPort:
    def __init__(self, broker: Broker, listener: Listener) -> None:
        self._broker = broker
        self._listener = listener
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None
        self._streams: Streams | None = None
        self.address = ""
        """HOST:PORT, with the port that the system chose for port 0."""

    async def start(self) -> None:
        """Open the port, or raise FencepostError."""
        wanted = self._broker.config.http_address
        assert wanted is not None
        opened = _bind(wanted)
        host, port = opened.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        made = make_app(self._broker, self._listener, wanted)
        self._streams = made.streams
        app: ASGIApp = OneLength(made.app)
        if (public := self._broker.config.http_public_url) is not None:
            app = Proxied(app, public)
        config = uvicorn.Config(
            app,
            http=_Protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            date_header=False, proxy_headers=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )  # fmt: skip
        config.load()
        config.ssl = self._tls()
        self._server = _Uvicorn(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[opened]))
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait((self._serving, listening), return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            listening.cancel()
            self._serving.result()
        self._broker.spawn(made.history.run(), "sample for the console's charts")

    @property
    def url(self) -> str:
        return f"{'http' if self._broker.config.http_listener is None else 'https'}://{self.address}"

    def _tls(self) -> ssl.SSLContext | None:
        """Return a context that always has the listener's newest certificate."""
        name = self._broker.config.http_listener
        if name is None:
            return None
        context = make_context(self._listener.ports[name].config)

        def take_newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            port = self._listener.ports.get(name)  # a reload may have replaced it
            if port is not None and port.tls is not None:
                connection.context = port.tls.context

        context.sni_callback = take_newest
        return context

    async def stop(self) -> None:
        if self._streams is not None:
            self._streams.stop()
        if self._server is not None and self._serving is not None:
            self._server.stop()
            await asyncio.gather(self._serving, return_exceptions=True)


def _bind(address: str) -> socket.socket:
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # otherwise a client with IPv4 has another address here than on the other ports
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind((host, port))
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise FencepostError(f"cannot serve HTTP on {address}: {reason}") from error
    return opened
