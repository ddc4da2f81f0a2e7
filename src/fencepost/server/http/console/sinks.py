"""The exactly-once sinks of Spark jobs: the last micro-batch of each, its steps, and writers that were replaced."""

from __future__ import annotations

from typing import Final

from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.views.paging import read_place
from fencepost.server.views.sinks import list_sinks


async def read(visit: Visit) -> Values:
    find = visit.query.get("find", "")
    page = await list_sinks(visit.caller, read_place(None, visit.query.get("cursor")), find)
    return {"sinks": page.items, "find": find, "next_cursor": page.next_cursor, "query": visit.query}


PAGES: Final = (ConsolePage("/sinks", "Sinks", read, "sinks_live.html", find="Name contains", in_navigation=True),)
