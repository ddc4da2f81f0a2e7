"""The page `/debug/state`: everything about a running server that helps to find a fault, and no secret."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fencepost import kernel
from fencepost._version import __version__
from fencepost.core.redaction import scrub, scrub_settings
from fencepost.server.http.access import Access, AccessRefused
from fencepost.server.process.reporting import last_lines
from fencepost.server.process.stacks import task_stacks, thread_stacks

if TYPE_CHECKING:
    from fencepost.server.broker import Broker


def debug_route(broker: Broker, access: Access, headers: Mapping[str, str]) -> Route:
    """Return the route. With authorization only super users may see the page: it shows other users' log lines."""
    one_at_a_time = asyncio.Lock()

    async def state(request: Request) -> Response:
        try:
            await access.require_super_user(request)
        except AccessRefused as error:
            return PlainTextResponse(f"{error}\n", error.status, headers={**headers, **error.headers})
        async with one_at_a_time:
            tasks = task_stacks()
            found = await asyncio.get_running_loop().run_in_executor(broker.threads, _describe, broker)
        found["texts"]["tasks"] = tasks
        return JSONResponse(found, headers=headers)

    return Route("/debug/state", state)


def _describe(broker: Broker) -> dict[str, Any]:
    return {
        "versions": versions(),
        "configuration": scrub_settings(asdict(broker.config)),
        "data": str(broker.directory.path),
        "troubles": [{**asdict(each), "reason": scrub(each.reason)} for each in broker.health.troubles],
        "texts": {"log": last_lines(), "threads": thread_stacks()},
    }


def versions() -> dict[str, Any]:
    """Return the versions of everything that runs in this process."""
    packages = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    return {
        "fencepost": __version__,
        "kernel": kernel.IMPLEMENTATION,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }
