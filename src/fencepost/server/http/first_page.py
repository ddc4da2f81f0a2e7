"""Logging in and out, and the page of a server without a console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fencepost._version import __version__
from fencepost.server.http.access import Access, AccessRefused, cookie_name
from fencepost.server.http.forms import BadForm, is_own, read_form
from fencepost.server.http.sessions import SESSION_SECONDS

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.http.console.routes import Console

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fencepost</title></head><body>
<h1>fencepost {version}</h1>
<p>The console is not installed here: its libraries could not be fetched when fencepost was built. Build it again where the package registries can be reached.</p>
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


class FirstPage:
    def __init__(self, broker: Broker, access: Access, console: Console | None, headers: Mapping[str, str]) -> None:
        self._broker = broker
        self._access = access
        self._console = console
        self._headers = dict(headers)

    def routes(self) -> list[Route]:
        return [
            Route("/login", self.index, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        return await self._page(request, to=request.query_params.get("next", ""))

    async def nothing_there(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for an address that does not exist: to people with a page, to programs with a line."""
        request = Request(scope, receive)
        if self._console is not None and "text/html" in request.headers.get("accept", ""):
            answer = await self._console.nothing_there(request)
        else:
            answer = self._plain("there is no such page", 404)
        await answer(scope, receive, send)

    async def _page(self, request: Request, *, said: str = "", status: int = 200, to: str = "") -> Response:
        if self._console is not None:
            return await self._console.login_page(request, said=said, status=status, to=to)
        login = ""
        if self._broker.authorizer.enabled:
            client = self._access.logged_in(request)
            if client is not None:
                login = _LOGOUT.format(user=escape(str(client.session.principal)))
            else:
                login = _FORM.format(said=f"<p>{escape(said)}</p>" if said else "")
        return HTMLResponse(_PAGE.format(version=__version__, login=login), status, headers=self._headers)

    async def _log_in(self, request: Request) -> Response:
        if not is_own(request):
            return self._plain("the form was not sent by a page of this server", 403)
        if not self._broker.authorizer.enabled:
            return RedirectResponse("/", 303, headers=self._headers)
        try:
            fields = await read_form(request)
        except BadForm as error:
            return PlainTextResponse(f"{error}\n", error.status, headers={**self._headers, "Connection": "close"})
        if not (fields.get("user") and fields.get("password")):
            return self._plain("a form with a user and a password is needed", 400)
        try:
            key = await self._access.begin_session(request, fields["user"], fields["password"])
        except AccessRefused as error:
            return await self._page(request, said=str(error), status=error.status, to=fields.get("next", ""))
        self._access.sessions.end(request.cookies.get(cookie_name(request)))
        answer = RedirectResponse(_path_here(fields.get("next", "")), 303, headers=self._headers)
        answer.set_cookie(
            cookie_name(request), key, max_age=int(SESSION_SECONDS), path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    async def _log_out(self, request: Request) -> Response:
        if not is_own(request):
            return self._plain("the form was not sent by a page of this server", 403)
        self._access.sessions.end(request.cookies.get(cookie_name(request)))
        answer = RedirectResponse("/", 303, headers=self._headers)
        answer.delete_cookie(
            cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return answer

    def _plain(self, text: str, status: int) -> Response:
        return PlainTextResponse(f"{text}\n", status, headers=self._headers)


def _path_here(path: str) -> str:
    """Return the path if it is one of this server, else the first page: a stranger's link must not lead elsewhere."""
    return path if re.fullmatch(r"/[\w.~%?-][\w.~%/?&=+:,*-]*", path, re.ASCII) else "/"
