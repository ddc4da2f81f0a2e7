"""Pages whose code is loaded late: once, in a thread, and again if that has failed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from fencepost.server.http.app import DeferredRoutes

pytestmark = pytest.mark.unit


async def page(_: Request) -> Response:
    return PlainTextResponse("here")


async def ask(app: DeferredRoutes) -> int:
    """Return the status of a request for /late."""
    sent: list[dict[str, Any]] = []
    scope = {"type": "http", "method": "GET", "path": "/late", "headers": [], "query_string": b"", "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


async def test_requests_at_the_same_time_load_the_routes_once_and_off_the_loop() -> None:
    made: list[str] = []

    def make() -> Router:
        made.append(threading.current_thread().name)
        return Router([Route("/late", page)])

    with ThreadPoolExecutor(2, thread_name_prefix="loads") as threads:
        app = DeferredRoutes(make, threads)
        assert await asyncio.gather(*(ask(app) for _ in range(5))) == [200] * 5
        assert await ask(app) == 200
    assert len(made) == 1
    assert made[0].startswith("loads")


async def test_routes_that_could_not_be_loaded_are_loaded_by_the_next_request() -> None:
    failures = [ImportError("no more files can be opened")]

    def make() -> Router:
        if failures:
            raise failures.pop()
        return Router([Route("/late", page)])

    with ThreadPoolExecutor(1) as threads:
        app = DeferredRoutes(make, threads)
        with pytest.raises(ImportError):
            await ask(app)
        assert await ask(app) == 200
