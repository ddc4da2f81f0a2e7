"""Long lists in pages. A cursor names the last row of a page, so pages stay right while rows come and go."""

from __future__ import annotations

import base64
import heapq
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from fencepost.server.net.turns import paced

DEFAULT_LIMIT: Final = 100
MOST: Final = 1000
"""Rows of a page."""

T = TypeVar("T")
RowKey: TypeAlias = tuple[Any, ...]


class BadQuery(Exception):
    """A parameter of the address is wrong; the text says how."""


class PagePlace(NamedTuple):
    limit: int
    after: RowKey | None
    """The key of the last row of the page before."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    next_cursor: str | None


def read_place(limit: str | None, cursor: str | None) -> PagePlace:
    """Return the place that a query asks for, or raise BadQuery."""
    rows = DEFAULT_LIMIT
    if limit is not None:
        if not (re.fullmatch("[0-9]{1,4}", limit) and 1 <= int(limit) <= MOST):
            raise BadQuery(f"limit must be a number from 1 to {MOST}, not {limit[:20]!r}")
        rows = int(limit)
    if cursor is None:
        return PagePlace(rows, None)
    try:
        after = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, RecursionError):
        after = None
    if not isinstance(after, list) or not after or not all(isinstance(part, str | int) for part in after):
        raise BadQuery("cursor must be the next_cursor of an earlier answer")
    return PagePlace(rows, tuple(after))


def write_cursor(key: RowKey) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


async def cut(rows: Iterable[T], key: Callable[[T], RowKey], place: PagePlace) -> tuple[list[T], str | None]:
    """Return the rows of one page, sorted by their keys, and the cursor of the next page."""
    after = place.after
    try:
        later = [row async for row in paced(rows) if after is None or key(row) > after]
    except TypeError:
        raise BadQuery("cursor is from another kind of list") from None
    found = heapq.nsmallest(place.limit + 1, later, key=key)
    if len(found) <= place.limit:
        return found, None
    found.pop()
    return found, write_cursor(key(found[-1]))
