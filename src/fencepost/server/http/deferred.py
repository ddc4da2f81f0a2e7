"""Pages whose code is loaded by their first request, so that the server starts without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from starlette.routing import Router
from starlette.types import Receive, Scope, Send


class DeferredRoutes:
    """An application that stands for routes which do not exist yet. A thread makes them: that takes too long for the
    loop."""

    def __init__(self, make: Callable[[], Router], threads: Executor) -> None:
        self._make = make
        self._threads = threads
        self._routing: asyncio.Task[Router] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._routing is None:
            self._routing = asyncio.ensure_future(self._load())
        try:
            router = await asyncio.shield(self._routing)
        except Exception:
            self._routing = None  # the next request tries again
            raise
        await router(scope, receive, send)

    async def _load(self) -> Router:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._make)
