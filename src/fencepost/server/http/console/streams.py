"""Server-sent events: the changing part of a page, sent when it has changed.

A browser has one stream per page. Nothing is computed for pages that nobody watches.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

EVERY_SECONDS: Final = 1.0
MOST_STREAMS: Final = 64
MOST_OF_ONE: Final = 16
"""Streams of one address."""


class Streams:
    """The streams of all browsers. When the server stops they end, and browsers try again later by themselves."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._open: Counter[str] = Counter()
        self._at_stop: list[Callable[[], None]] = []

    def has_place(self, peer: str) -> bool:
        """Tell if this browser may have one more stream."""
        return self._open.total() < MOST_STREAMS and self._open[peer] < MOST_OF_ONE

    @contextmanager
    def place(self, peer: str) -> Iterator[None]:
        """Count a stream of this browser until the end of the block."""
        self._open[peer] += 1
        try:
            yield
        finally:
            self._open[peer] -= 1
            self._open += Counter()  # drops those without any

    def at_stop(self, work: Callable[[], None]) -> None:
        """Let `work` be done when the server stops."""
        self._at_stop.append(work)

    def stop(self) -> None:
        self._stopping.set()
        for work in self._at_stop:
            work()

    async def pause(self) -> bool:
        """Wait until a page looks again; return False if the server stops."""
        try:
            await asyncio.wait_for(self._stopping.wait(), EVERY_SECONDS)
        except TimeoutError:
            return True
        return False


def event(name: str, text: str) -> str:
    """Return an event as the browser reads it. A name may contain a carriage return, which ends a line as well: what
    follows it must not become a field of the event."""
    lines = "".join(f"data: {line}\n" for line in re.split("\r\n|\r|\n", text))
    return f"event: {name}\n{lines}\n"
