"""The pages of the HTTP port."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from fencepost._version import __version__
from fencepost.server.http.access import Access
from fencepost.server.http.readiness import Readiness
from fencepost.server.metrics.families import render
from fencepost.server.metrics.state import read_state

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


class _Scrapes:
    """One scrape at a time; who asks meanwhile gets the same text."""

    def __init__(self, broker: Broker, listener: Listener) -> None:
        self._broker = broker
        self._listener = listener
        self._under_way: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        if self._under_way is None:
            self._under_way = asyncio.ensure_future(self._scrape())
            self._under_way.add_done_callback(self._done)
        return await asyncio.shield(self._under_way)

    def _done(self, scraping: asyncio.Task[bytes]) -> None:
        self._under_way = None
        if not scraping.cancelled():
            scraping.exception()  # those who asked have it, or have hung up

    async def _scrape(self) -> bytes:
        state = await read_state(self._broker, self._listener)
        return await self._broker.codecs.run(partial(render, state, self._broker.config.http_max_series))


def make_app(broker: Broker, listener: Listener, address: str) -> Starlette:
    readiness = Readiness(broker)
    access = Access(broker, address)
    scrapes = _Scrapes(broker, listener)

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
