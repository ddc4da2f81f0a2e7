"""The pieces of which every page consists: the visit that asks for it, the table entry that describes it, and the
stream of server-sent events with its changing part.

A browser has one stream per page. Nothing is computed for pages that nobody watches.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fencepost.server.net.turns import Turns
from fencepost.server.views.asking import HttpCaller
from fencepost.server.views.paging import PagePlace, read_place

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.http.console.overview import LoadHistory
    from fencepost.server.search.searching import Searches
    from fencepost.server.views.snapshot import Snapshot

EVERY_SECONDS: Final = 1.0
MOST_STREAMS: Final = 64
MOST_OF_ONE: Final = 16
"""Streams of one address."""

Values: TypeAlias = Mapping[str, Any]
"""The names that a template uses."""


class Visit(NamedTuple):
    """One request of a browser."""

    caller: HttpCaller
    """Asks the server's APIs in the name of the user."""
    path: Mapping[str, str]
    """The parameters in the path."""
    query: Mapping[str, str]
    history: LoadHistory
    searches: Searches
    max_age: float = 0.0
    """Seconds that a snapshot may be old: a page that is watched shares one with others."""

    @property
    def broker(self) -> Broker:
        return self.caller.broker

    @property
    def find(self) -> str:
        """The text that rows must contain."""
        return self.query.get("find", "").strip()

    @property
    def place(self) -> PagePlace:
        return read_place(None, self.query.get("cursor"))

    def values(self, values: Values) -> dict[str, Any]:
        """Return the values of a page with those that all pages have."""
        return {"query": self.query, "find": self.find, **values}

    def again(self) -> Visit:
        """Return the same visit with a new share of the loop's time: a stream asks again and again."""
        return self._replace(caller=self.caller._replace(turns=Turns()), max_age=EVERY_SECONDS)

    async def snapshot(self) -> Snapshot:
        return await self.caller.snapshots.now(self.max_age)


class PageRefused(Exception):
    """The page cannot be shown, or the change not made; the text is for the person who asked."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class Done(NamedTuple):
    """A change was made: the browser goes to `path`, where the message is shown once."""

    path: str
    message: str
    made: bool = True
    """False: it was not made, and the message says why."""


class ConsolePage(NamedTuple):
    path: str
    """With Starlette's parameters in braces."""
    title: str
    """Also the word in the navigation, if there is one."""
    read: Callable[[Visit], Awaitable[Values]]
    live: str = ""
    """The template of the part that changes; the stream of the page sends it whenever it is another text."""
    template: str = "layout.html"
    """Extends layout.html, if the page has more than the frame, the form that finds rows, and the live part."""
    find: str = ""
    """The words before the field of the form, whose value is `find`."""
    in_navigation: bool = False
    has_charts: bool = False


class ConsoleAction(NamedTuple):
    """A form of a page. It is only taken from a page of this server."""

    path: str
    act: Callable[[Visit, Mapping[str, str]], Awaitable[Done]]
    """Called with the fields of the form; raises PageRefused or FencepostError."""


class StreamedAnswer(NamedTuple):
    chunks: AsyncIterator[str] | AsyncIterator[bytes]
    media_type: str
    headers: Mapping[str, str] = {}


class ConsoleStream(NamedTuple):
    """A long answer that is made while it is sent: the events of a search, or a file."""

    path: str
    open: Callable[[Visit, Callable[[], Awaitable[None]]], Awaitable[StreamedAnswer]]
    """Called with a function that raises AccessRefused when the login has ended; raises what a page's `read` does."""


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
