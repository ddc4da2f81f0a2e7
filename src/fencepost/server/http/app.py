"""The pages of the HTTP port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from fencepost._version import __version__
from fencepost.server.http.access import Access
from fencepost.server.http.readiness import Readiness
from fencepost.server.metrics.scrapes import Scrapes

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE: Final = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fencepost</title></head><body>
<h1>fencepost {__version__}</h1>
<ul>
<li><a href="/healthz">/healthz</a>: the process answers</li>
<li><a href="/readyz">/readyz</a>: logs are open, the metadata store can be written, the disk has room</li>
<li><a href="/metrics">/metrics</a>: for Prometheus</li>
</ul>
</body></html>
"""
_SAFE: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def make_app(broker: Broker, listener: Listener, address: str) -> Starlette:
    readiness = Readiness(broker)
    access = Access(broker, address)
    scrapes = Scrapes(broker, listener)

    async def index(_: Request) -> Response:
        return HTMLResponse(_PAGE, headers=_SAFE)

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
        if (refusal := await access.refusal(request)) is not None:
            return refusal
        return Response(await scrapes.text(), media_type=_METRICS_TYPE, headers=_SAFE)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
