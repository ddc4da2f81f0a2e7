"""Owners of resources, the claims that wait in line, and the take-overs since the start of the server."""

from __future__ import annotations

from typing import Final

from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.views.owners import list_owners, list_takeovers, list_waiting_claims
from fencepost.server.views.paging import read_place

_WAITING: Final = 50
_TAKEOVERS: Final = 50
"""Rows beside the owners."""
_FRESH_MS: Final = 3000
"""A take-over that is younger than this catches the eye."""
_NAMES: Final = 10
"""Resources of a waiting claim that are named; a claim may have thousands."""


async def read(visit: Visit) -> Values:
    """The three lists have cursors of their own: `cursor`, `waiting` and `takeovers`."""
    query, caller = visit.query, visit.caller
    find = query.get("find", "").strip()
    owners = await list_owners(caller, read_place(None, query.get("cursor")), None, find)
    waiting = await list_waiting_claims(caller, read_place(str(_WAITING), query.get("waiting")), None, find)
    events = await list_takeovers(caller, read_place(str(_TAKEOVERS), query.get("takeovers")), None, find)
    return {
        "query": dict(query),
        "find": find,
        "owners": owners,
        "waiting": waiting,
        "names": _NAMES,
        "takeovers": events,
        "fresh_from_ms": caller.broker.clock.now_ms() - _FRESH_MS,
    }


PAGES: Final = (
    ConsolePage("/owners", "Owners", read, "owners_live.html", find="Group or resource", in_navigation=True),
)
