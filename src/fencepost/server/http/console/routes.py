"""The table of pages, and the answers to browsers that ask for them."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fencepost._version import __version__
from fencepost.errors import FencepostError
from fencepost.server.http.access import SESSION_SECONDS, Access, AccessRefused, cookie_name
from fencepost.server.http.console import group_reset, lists, overview, producers, records, security
from fencepost.server.http.console.assets import assets
from fencepost.server.http.console.overview import LoadHistory
from fencepost.server.http.console.page import (
    ConsoleAction,
    ConsolePage,
    ConsoleStream,
    Done,
    PageRefused,
    Streams,
    Values,
    Visit,
    event,
)
from fencepost.server.http.console.rendering import render
from fencepost.server.http.v1.routes import STATUS
from fencepost.server.net.turns import Turns
from fencepost.server.search.searching import Searches
from fencepost.server.views.asking import HttpCaller
from fencepost.server.views.paging import BadQuery

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener
    from fencepost.server.views.snapshot import Snapshots

T = TypeVar("T")

PAGES: Final[tuple[ConsolePage, ...]] = (
    *overview.PAGES,
    *lists.TOPIC_PAGES,
    *records.PAGES,
    *producers.PAGES,
    *group_reset.PAGES,
    *lists.OTHER_PAGES,
    *security.PAGES,
)
ACTIONS: Final[tuple[ConsoleAction, ...]] = (*producers.ACTIONS, *group_reset.ACTIONS)
STREAMS: Final[tuple[ConsoleStream, ...]] = (*records.STREAMS,)

_LIVE: Final = "/live"
_STREAM: Final = "text/event-stream"
_MOST_MESSAGES: Final = 100
_LONGEST_FORM: Final = 16 * 1024
_FORM_SECONDS: Final = 10.0
"""A form that does not come must not keep its connection: the port has only so many."""
_MOST_LOGIN_PAGES: Final = 20
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
_ASSET_HEADERS: Final = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}


class Console:
    """Answers browsers. One for the life of the HTTP port."""

    def __init__(
        self,
        broker: Broker,
        listener: Listener,
        access: Access,
        headers: Mapping[str, str],
        history: LoadHistory,
        snapshots: Snapshots,
        streams: Streams,
    ) -> None:
        self._broker = broker
        self._listener = listener
        self._access = access
        self._headers = {**headers, "Content-Security-Policy": _POLICY}
        self._streams = streams
        self._history = history
        self._snapshots = snapshots
        self._searches = Searches()
        streams.at_stop(self._searches.close)
        self._messages: dict[str, Done] = {}
        """What a change has to say on the next page, by a random key: a stranger's link cannot put words there."""
        self._login_pages: dict[tuple[str, str], str] = {}
        """By what they say, and the user who is logged in."""
        self._next = secrets.token_hex(16)
        """Stands in these pages for the address to go on to."""

    def routes(self) -> list[Route]:
        found = [Route("/assets/{digest}/{name}", self._asset, methods=["GET"])]
        found += [
            Route(_LIVE + page.path, partial(self._live, page=page), methods=["GET"]) for page in PAGES if page.live
        ]
        found += [Route(each.path, partial(self._stream, stream=each), methods=["GET"]) for each in STREAMS]
        found += [Route(page.path, partial(self._page, page=page), methods=["GET"]) for page in PAGES]
        found += [Route(each.path, partial(self._act, action=each), methods=["POST"]) for each in ACTIONS]
        return [
            *found,
            Route("/login", self._login, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        ]

    async def nothing_there(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for an address that does not exist: to people with a page, to programs with a line."""
        request = Request(scope, receive)
        if "text/html" in request.headers.get("accept", ""):
            answer = await self._problem(request, PageRefused("There is no such page.", 404))
        else:
            answer = self._plain("there is no such page", 404)
        await answer(scope, receive, send)

    # -- logins -----------------------------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        return await self._login_page(request, to=request.query_params.get("next", ""))

    async def _login_page(self, request: Request, *, said: str = "", status: int = 200, to: str) -> Response:
        user = self._access.logged_in(request) if self._broker.authorizer.enabled else None
        about = said, str(user.session.principal) if user is not None else ""
        if about not in self._login_pages:
            # Strangers ask for it, so it is made once. Only the address to go on to differs.
            if len(self._login_pages) >= _MOST_LOGIN_PAGES:
                self._login_pages.clear()
            self._login_pages[about] = await self._text(
                request, "login.html", title="Log in", said=said, was_made=not said, next=self._next
            )
        text = self._login_pages[about].replace(self._next, escape(to))
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status, headers=self._headers)

    async def _log_in(self, request: Request) -> Response:
        if not _is_own(request):
            return self._plain("the form was not sent by a page of this server", 403)
        if not self._broker.authorizer.enabled:
            return RedirectResponse("/", 303, headers=self._headers)
        try:
            fields = await _read_form(request)
        except PageRefused as error:
            return PlainTextResponse(f"{error}\n", error.status, headers={**self._headers, "Connection": "close"})
        if not (fields.get("user") and fields.get("password")):
            return self._plain("a form with a user and a password is needed", 400)
        to = fields.get("next", "")
        try:
            key = await self._access.begin_session(request, fields["user"], fields["password"])
        except AccessRefused as error:
            return await self._login_page(request, said=str(error), status=error.status, to=to)
        self._access.sessions.end(request.cookies.get(cookie_name(request)))
        # Only a path of this server: a stranger's link must not lead elsewhere.
        here = to if re.fullmatch(r"/[\w.~%?-][\w.~%/?&=+:,*-]*", to, re.ASCII) else "/"
        answer = RedirectResponse(here, 303, headers=self._headers)
        answer.set_cookie(
            cookie_name(request), key, max_age=int(SESSION_SECONDS), path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    async def _log_out(self, request: Request) -> Response:
        if not _is_own(request):
            return self._plain("the form was not sent by a page of this server", 403)
        self._access.sessions.end(request.cookies.get(cookie_name(request)))
        answer = RedirectResponse("/", 303, headers=self._headers)
        answer.delete_cookie(
            cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return answer

    def _plain(self, text: str, status: int) -> Response:
        return PlainTextResponse(f"{text}\n", status, headers=self._headers)

    # -- answers ----------------------------------------------------------------------------------------------

    async def _asset(self, request: Request) -> Response:
        found = (await self._in_thread(assets)).get(request.path_params["name"])
        if found is None or request.url.path != found.address:
            return HTMLResponse("there is no such file\n", 404, headers=self._headers)
        headers = {**_ASSET_HEADERS, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(found.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=found.media_type)
        return Response(found.content, headers=headers, media_type=found.media_type)

    async def _page(self, request: Request, page: ConsolePage) -> Response:
        try:
            visit = await self._visit(request)
            values = await page.read(visit)
        except (AccessRefused, BadQuery, PageRefused, FencepostError) as error:
            return await self._problem(request, error)
        done = self._messages.pop(request.query_params.get("said", ""), None)
        return await self._html(
            request, page.template, 200, title=page.title, page=page, said=done.message if done else "",
            was_made=done is None or done.made, live=_LIVE + _address(request), **visit.values(values),
        )  # fmt: skip

    async def _live(self, request: Request, page: ConsolePage) -> Response:
        try:
            visit = await self._visit(request)
        except AccessRefused as error:
            if error.status != 401:
                return await self._problem(request, error)
            # The page is older than the last start of the server, or the session has ended: loaded anew, the page
            # becomes the one to log in.
            return Response(event("reload", ""), headers=self._headers, media_type=_STREAM)
        if not self._streams.has_place(visit.caller.peer):
            # An error, not an empty stream: the browser would say "Live" whenever it tries again.
            return self._plain("too many pages are open", 503)
        if request.method == "HEAD":  # it would never end
            return Response(headers=self._headers, media_type=_STREAM)
        return StreamingResponse(self._events(request, page, visit), headers=self._headers, media_type=_STREAM)

    async def _events(self, request: Request, page: ConsolePage, visit: Visit) -> AsyncIterator[str]:
        """Yield the changing part of a page, whenever what it shows has changed."""
        shown: Values | None = None
        with self._streams.place(visit.caller.peer):
            while True:
                try:
                    await self._access.client(request)  # the login may have ended meanwhile
                    values = await page.read(visit.again())
                except (AccessRefused, BadQuery, PageRefused, FencepostError):
                    yield event("reload", "")  # loaded anew, the page says why
                    return
                if values != shown:  # comparing costs less than rendering
                    shown = values
                    work = partial(render, page.live, page=page, **visit.values(values))
                    yield event("live", await self._broker.codecs.run(work))
                else:
                    yield ":\n\n"  # so that connections to browsers that vanished end
                if not await self._streams.pause():
                    return

    async def _stream(self, request: Request, stream: ConsoleStream) -> Response:
        async def still_allowed() -> None:
            await self._access.client(request)

        try:
            visit = await self._visit(request)
            if not self._streams.has_place(visit.caller.peer):
                raise PageRefused("too many pages are open", 503)
            answer = await stream.open(visit, still_allowed)
        except (AccessRefused, BadQuery, PageRefused, FencepostError) as error:
            return await self._problem(request, error)

        async def chunks() -> AsyncIterator[str | bytes]:
            with self._streams.place(visit.caller.peer):
                async for each in answer.chunks:
                    yield each

        headers = {**self._headers, **answer.headers}
        return StreamingResponse(chunks(), headers=headers, media_type=answer.media_type)

    async def _act(self, request: Request, action: ConsoleAction) -> Response:
        try:
            if not _is_own(request):
                raise PageRefused("the form was not sent by a page of this server", 403)
            self._access.require_safe_host(request)
            visit = await self._visit(request)
            done = await action.act(visit, await _read_form(request))
        except (AccessRefused, BadQuery, PageRefused, FencepostError) as error:
            return await self._problem(request, error)
        while len(self._messages) >= _MOST_MESSAGES:
            del self._messages[next(iter(self._messages))]
        self._messages[key := secrets.token_urlsafe(8)] = done
        joint = "&" if "?" in done.path else "?"
        return RedirectResponse(f"{done.path}{joint}said={key}", 303, headers=self._headers)

    # -- parts ------------------------------------------------------------------------------------------------

    async def _visit(self, request: Request) -> Visit:
        client = await self._access.client(request)
        caller = HttpCaller(self._broker, self._listener, client, self._snapshots, Turns())
        return Visit(caller, dict(request.path_params), dict(request.query_params), self._history, self._searches)

    async def _problem(self, request: Request, error: Exception) -> Response:
        if isinstance(error, AccessRefused) and error.status == 401:
            # A login page, not the browser's own window, which has no way to log out.
            to = _address(request) if request.method == "GET" else "/"
            return RedirectResponse(f"/login?{urlencode({'next': to})}", 303, headers=self._headers)
        status, reason = 500, str(error)
        if isinstance(error, AccessRefused | PageRefused):
            status = error.status
        elif isinstance(error, BadQuery):
            status = 400
        elif isinstance(error, FencepostError):
            status, reason = STATUS.get(error.code, 500), error.reason or str(error)
        return await self._html(request, "problem.html", status, title="Not possible", reason=reason, said="")

    async def _html(self, request: Request, template: str, status: int, **values: object) -> Response:
        return HTMLResponse(await self._text(request, template, **values), status, headers=self._headers)

    async def _text(self, request: Request, template: str, **values: object) -> str:
        loaded = await self._in_thread(assets)
        user = self._access.logged_in(request) if self._broker.authorizer.enabled else None
        return await self._broker.codecs.run(
            partial(
                render, template, **{"page": None, "live": "", "was_made": True, **values},
                version=__version__, path=request.url.path,
                navigation=[page for page in PAGES if page.in_navigation],
                asset=lambda name: loaded[name].address,
                user=str(user.session.principal) if user is not None else "",
            )
        )  # fmt: skip

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._broker.threads, work)


def _address(request: Request) -> str:
    """Return path and query as the browser has sent them. In a decoded path a name with %, ? or a tabulator would be
    another name."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode()


def _is_own(request: Request) -> bool:
    """Tell if a page of this server has sent the form. Browsers name the page's origin with every POST."""
    return request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host', '')}"


async def _read_form(request: Request) -> dict[str, str]:
    """Return the fields, each of which may occur once; raise PageRefused."""
    body = b""
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _LONGEST_FORM:
                    raise PageRefused(f"the form is longer than {_LONGEST_FORM} bytes", 413)
    except TimeoutError:
        raise PageRefused("the form did not come in time", 408) from None
    try:
        fields = parse_qs(body.decode(), strict_parsing=bool(body), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise PageRefused("the form cannot be read") from None
    if any(len(values) != 1 for values in fields.values()):
        raise PageRefused("the form has a field twice")
    return {name: value for name, (value,) in fields.items()}
