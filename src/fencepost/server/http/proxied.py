"""Requests that come through a proxy, which ends TLS (`http.public_url`) or only passes them on.

The browser speaks HTTPS and the server hears HTTP, so the origin that the browser names would never be the server's
own: the login form would be refused, and its cookie would lack the protection of HTTPS. A request for the public name
is therefore taken for what it was before the proxy.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_LENGTHS: Final = {b"content-length", b"transfer-encoding"}


def public_host(url: str | None) -> str | None:
    """Return the Host header of browsers that use this address."""
    return urlsplit(url).netloc if url is not None else None


class Proxied:
    """The application behind the proxy."""

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
