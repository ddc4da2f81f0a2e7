"""The addresses of the HTTP port. Health and metrics are at hand; everything else is loaded by its first request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from fencepost.server.http.access import Access, AccessRefused
from fencepost.server.http.console.history import LoadHistory
from fencepost.server.http.console.streams import Streams
from fencepost.server.http.deferred import DeferredRoutes
from fencepost.server.http.readiness import Readiness
from fencepost.server.metrics.scrapes import Scrapes

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


class HttpApp(NamedTuple):
    app: Starlette
    history: LoadHistory
    """To be run as long as the port is open."""
    streams: Streams
    """To be stopped before the port closes."""


def make_app(broker: Broker, listener: Listener, address: str) -> HttpApp:
    readiness = Readiness(broker)
    access = Access(broker, address)
    scrapes = Scrapes(broker, listener)
    history = LoadHistory(broker)
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
        from fencepost.server.http.first_page import FirstPage
        from fencepost.server.http.v1.routes import api_routes

        console = Console(broker, listener, access, _SAFE, history, streams) if are_installed() else None
        first = FirstPage(broker, access, console, _SAFE)
        pages = console.routes() if console is not None else [Route("/", first.index)]
        return Router(
            [*pages, *first.routes(), *api_routes(broker, listener, access, _SAFE), debug_route(broker, access, _SAFE)],
            default=first.nothing_there,
        )

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/{rest:path}", DeferredRoutes(later, broker.threads)),
        ]
    )
    return HttpApp(app, history, streams)
