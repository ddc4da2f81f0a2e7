"""A client of the server's HTTP port that keeps its connection, as Prometheus does."""

from __future__ import annotations

import contextlib
import http.client
from urllib.parse import urlsplit


class PageClient:
    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)

    def get(self, path: str) -> bytes:
        """Return the page, or raise RuntimeError."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        page = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {page[:200]!r}")
        return page

    def close(self) -> None:
        self._connection.close()


def is_ready(url: str) -> bool:
    """Is /readyz answered, and with yes?"""
    with contextlib.closing(PageClient(url)) as client, contextlib.suppress(OSError, http.client.HTTPException):
        return client.get("/readyz") == b"ready\n"
    return False
