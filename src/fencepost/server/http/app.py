"""The pages of the HTTP port."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from fencepost._version import __version__
from fencepost.server.http.access import Access, AccessRefused, cookie_name
from fencepost.server.http.console.assets import are_installed
from fencepost.server.http.console.routes import Console
from fencepost.server.http.debug import debug_route
from fencepost.server.http.forms import BadForm, is_own, read_form
from fencepost.server.http.readiness import Readiness
from fencepost.server.http.sessions import SESSION_SECONDS
from fencepost.server.http.v1.routes import api_routes
from fencepost.server.metrics.scrapes import Scrapes

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fencepost</title></head><body>
<h1>fencepost {version}</h1>
<p>The console is not installed here: its libraries are fetched with npm when fencepost is built (<code>make setup</code>).</p>
{login}
<ul>
<li><a href="/healthz">/healthz</a>: the process answers</li>
<li><a href="/readyz">/readyz</a>: logs are open, the metadata store can be written, the disk has room</li>
<li><a href="/metrics">/metrics</a>: for Prometheus</li>
<li><a href="/api/v1/cluster">/api/v1/</a>: the server's state as JSON; <a href="/api/v1/openapi.json">its description</a></li>
</ul>
</body></html>
"""  # noqa: E501
_FORM: Final = """<form method="post" action="/login">{said}
<label>User <input name="user" autocomplete="username" required></label>
<label>Password <input name="password" type="password" autocomplete="current-password" required></label>
<button>Log in</button>
</form>"""
_LOGOUT: Final = """<form method="post" action="/logout">Logged in as {user}. <button>Log out</button></form>"""
_SAFE: Final = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class HttpApp(NamedTuple):
    app: Starlette
    console: Console | None
    """None if its libraries are not installed."""


def make_app(broker: Broker, listener: Listener, address: str) -> HttpApp:
    readiness = Readiness(broker)
    access = Access(broker, address)
    scrapes = Scrapes(broker, listener)
    console = Console(broker, listener, access, _SAFE) if are_installed() else None

    async def page(request: Request, *, said: str = "", status: int = 200, to: str = "") -> Response:
        if console is not None:
            return await console.login_page(request, said=said, status=status, to=to)
        login = ""
        if broker.authorizer.enabled:
            client = access.logged_in(request)
            if client is not None:
                login = _LOGOUT.format(user=escape(str(client.session.principal)))
            else:
                login = _FORM.format(said=f"<p>{escape(said)}</p>" if said else "")
        return HTMLResponse(_PAGE.format(version=__version__, login=login), status, headers=_SAFE)

    async def index(request: Request) -> Response:
        return await page(request, to=request.query_params.get("next", ""))

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

    async def login(request: Request) -> Response:
        if not is_own(request):
            return PlainTextResponse("the form was not sent by a page of this server\n", 403, headers=_SAFE)
        if not broker.authorizer.enabled:
            return RedirectResponse("/", 303, headers=_SAFE)
        try:
            fields = await read_form(request)
        except BadForm as error:
            return PlainTextResponse(f"{error}\n", error.status, headers={**_SAFE, "Connection": "close"})
        if not (fields.get("user") and fields.get("password")):
            return PlainTextResponse("a form with a user and a password is needed\n", 400, headers=_SAFE)
        try:
            key = await access.begin_session(request, fields["user"], fields["password"])
        except AccessRefused as error:
            return await page(request, said=str(error), status=error.status, to=fields.get("next", ""))
        access.sessions.end(request.cookies.get(cookie_name(request)))
        answer = RedirectResponse(_path_here(fields.get("next", "")), 303, headers=_SAFE)
        answer.set_cookie(
            cookie_name(request), key, max_age=int(SESSION_SECONDS), path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    async def logout(request: Request) -> Response:
        if not is_own(request):
            return PlainTextResponse("the form was not sent by a page of this server\n", 403, headers=_SAFE)
        access.sessions.end(request.cookies.get(cookie_name(request)))
        answer = RedirectResponse("/", 303, headers=_SAFE)
        answer.delete_cookie(
            cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return answer

    async def nothing(request: Request, _: Exception) -> Response:
        if console is not None and "text/html" in request.headers.get("accept", ""):
            return await console.nothing_there(request)
        return PlainTextResponse("there is no such page\n", 404, headers=_SAFE)

    app = Starlette(
        exception_handlers={404: nothing},
        routes=[
            *([Route("/", index)] if console is None else console.routes()),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/login", login, methods=["POST"]),
            Route("/login", index, methods=["GET"]),
            Route("/logout", logout, methods=["POST"]),
            *api_routes(broker, listener, access, _SAFE),
            debug_route(broker, access, _SAFE),
        ],
    )
    return HttpApp(app, console)


def _path_here(path: str) -> str:
    """Return the path if it is one of this server, else the first page: a stranger's link must not lead elsewhere."""
    return path if re.fullmatch(r"/[\w.~%-][\w.~%/?&=+:,-]*", path, re.ASCII) else "/"
