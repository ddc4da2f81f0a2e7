"""The addresses of the HTTP port. Health and metrics are at hand; everything else is loaded by its first request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from fencepost.errors import FencepostError
from fencepost.server.health import Chore
from fencepost.server.http.access import Access, AccessRefused
from fencepost.server.http.console.overview import LoadHistory
from fencepost.server.http.console.page import Streams
from fencepost.server.metrics.scrape import Scrapes
from fencepost.server.process.tuning import files_are_left
from fencepost.server.views.snapshot import Snapshots

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SAFE: Final = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NO_CONSOLE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fencepost</title></head><body>
<h1>fencepost</h1>
<p>The console is not installed here: its libraries could not be fetched when fencepost was built. Build it again where the package registries can be reached.</p>
<ul>
<li><a href="/healthz">/healthz</a>: the process answers</li>
<li><a href="/readyz">/readyz</a>: logs are open, the metadata store can be written, the disk has room</li>
<li><a href="/metrics">/metrics</a>: for Prometheus</li>
<li><a href="/api/v1/cluster">/api/v1/</a>: the server's state as JSON; <a href="/api/v1/openapi.json">its description</a></li>
</ul>
</body></html>
"""  # noqa: E501


class DeferredRoutes:
    """An application that stands for routes which do not exist yet, so that the server starts without their code. A
    thread makes them: that takes too long for the loop."""

    def __init__(self, make: Callable[[], Router], threads: Executor) -> None:
        self._make = make
        self._threads = threads
        self._loading = asyncio.Lock()
        self._router: Router | None = None
        """None until it is loaded. If that fails, the next request tries again."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._loading:
            if self._router is None:
                self._router = await asyncio.get_running_loop().run_in_executor(self._threads, self._make)
        await self._router(scope, receive, send)


_VALID_SECONDS: Final = 1.0
"""Who asks more often gets the last answer: each new one writes to the store."""
_STORE_SECONDS: Final = 5.0
_NAMED: Final = 5
_PROBE: Final = "INSERT OR REPLACE INTO meta (name, value) VALUES ('ready_ms', ?)"


class Readiness:
    """Is the server ready for clients? Load balancers and container platforms ask often. Used only on the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asking = asyncio.Lock()
        self._answer: list[str] = []
        self._valid_until = float("-inf")

    async def reasons(self) -> list[str]:
        """Return why the server is not ready, one sentence each; empty if it is. Callers share one probe."""
        async with self._asking:
            if self._broker.clock.monotonic() >= self._valid_until:
                self._answer = await self._ask()
                self._valid_until = self._broker.clock.monotonic() + _VALID_SECONDS
            return self._answer

    async def _ask(self) -> list[str]:
        broker = self._broker
        reasons = []
        await asyncio.get_running_loop().run_in_executor(broker.threads, broker.space.look)
        if not files_are_left():
            reasons.append(
                "the process has opened as many files as it may: raise its limit (ulimit -n), or lower max_connections"
            )
        if broker.space.is_low:
            reasons.append(str(broker.space.refusal()))
        try:
            written = broker.store.execute([(_PROBE, (str(broker.clock.now_ms()),))])
            await asyncio.wait_for(written, _STORE_SECONDS)
        except TimeoutError:
            reasons.append(f"the metadata store has not committed a change for {_STORE_SECONDS:g} s")
        except FencepostError as error:
            reasons.append(str(error))
        failed = [trouble for trouble in broker.health.troubles if trouble.chore in (Chore.SYNC, Chore.OPENING)]
        reasons += [f"{trouble.chore} of {trouble.subject} fails: {trouble.reason}" for trouble in failed[:_NAMED]]
        if len(failed) > _NAMED:
            reasons.append(f"and {len(failed) - _NAMED} further partitions")
        return reasons


class HttpApp(NamedTuple):
    app: Starlette
    history: LoadHistory
    """To be run as long as the port is open."""
    streams: Streams
    """To be stopped before the port closes."""


def make_app(broker: Broker, listener: Listener, address: str) -> HttpApp:
    readiness = Readiness(broker)
    access = Access(broker, address)
    snapshots = Snapshots(broker)
    scrapes = Scrapes(broker, listener, snapshots)
    history = LoadHistory(broker, snapshots)
    streams = Streams()

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=_SAFE)

    async def readyz(_: Request) -> Response:
        reasons = await readiness.reasons()
        if reasons:
            # Reasons name files and topics, so only those who may see the state get them.
            text = "not ready\n" if broker.authorizer.enabled else "".join(f"{reason}\n" for reason in reasons)
            return PlainTextResponse(text, 503, headers=_SAFE)
        return PlainTextResponse("ready\n", headers=_SAFE)

    async def metrics(request: Request) -> Response:
        try:
            await access.require_state(request)
        except AccessRefused as error:
            return PlainTextResponse(f"{error}\n", error.status, headers={**_SAFE, **error.headers})
        return Response(await scrapes.text(), media_type=_METRICS_TYPE, headers=_SAFE)

    def later() -> Router:
        from fencepost.server.http.console.assets import are_installed
        from fencepost.server.http.console.routes import Console
        from fencepost.server.http.debug import debug_route
        from fencepost.server.http.v1.routes import api_routes

        pages, nothing_there = [Route("/", without_console)], None
        if are_installed():
            console = Console(broker, listener, access, _SAFE, history, snapshots, streams)
            pages, nothing_there = console.routes(), console.nothing_there
        others = api_routes(broker, listener, access, snapshots, _SAFE)
        return Router([*pages, *others, debug_route(broker, access, _SAFE)], default=nothing_there)

    async def without_console(_: Request) -> Response:
        return HTMLResponse(_NO_CONSOLE, headers=_SAFE)

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/{rest:path}", DeferredRoutes(later, broker.threads)),
        ]
    )
    return HttpApp(app, history, streams)
