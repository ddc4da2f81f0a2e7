"""Forms that a browser sends."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

_LONGEST: Final = 16 * 1024
_SECONDS: Final = 10.0
"""A form that does not come must not keep its connection: the port has only so many."""


class BadForm(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def is_own(request: Request) -> bool:
    """Tell if a page of this server has sent the form. Browsers name the page's origin with every POST."""
    return request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host', '')}"


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields, each of which may occur once; raise BadForm."""
    body = b""
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _LONGEST:
                    raise BadForm(413, f"the form is longer than {_LONGEST} bytes")
    except TimeoutError:
        raise BadForm(408, "the form did not come in time") from None
    try:
        fields = parse_qs(body.decode(), strict_parsing=bool(body), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise BadForm(400, "the form cannot be read") from None
    if any(len(values) != 1 for values in fields.values()):
        raise BadForm(400, "the form has a field twice")
    return {name: value for name, (value,) in fields.items()}
