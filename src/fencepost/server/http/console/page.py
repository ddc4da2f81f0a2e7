"""The pieces of which every page consists: the visit that asks for it, and the table entry that describes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fencepost.server.net.turns import Turns
from fencepost.server.views.asking import HttpCaller
from fencepost.server.views.paging import PagePlace, read_place

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.http.console.overview import LoadHistory
    from fencepost.server.search.searching import Searches
    from fencepost.server.views.snapshot import Snapshot

_WATCHED_SECONDS: Final = 1.0

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
        return self._replace(caller=self.caller._replace(turns=Turns()), max_age=_WATCHED_SECONDS)

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
