"""Consumer groups: the list, and one group with its members, offsets and lag."""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.core.rows import GroupMember, GroupOffset, GroupSummary
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.views.groups import GroupLag, describe_group, lag_seen, list_groups, list_offsets
from fencepost.server.views.paging import DEFAULT_LIMIT, read_place
from fencepost.types import TopicPartition


class GroupLine(NamedTuple):
    """A row of the list."""

    group: GroupSummary
    members: int
    lag: GroupLag


class PartitionLine(NamedTuple):
    """A partition that the group has committed, or that a member is assigned."""

    topic: str
    partition: int
    offset: GroupOffset | None
    member: GroupMember | None


async def read_list(visit: Visit) -> Values:
    find = visit.query.get("find", "")
    page = await list_groups(visit.caller, read_place(None, visit.query.get("cursor")), find)
    there = (await visit.snapshot()).groups
    found = [(group, there[group.name]) for group in page.items if group.name in there]
    lines = [GroupLine(group, rows.members, await lag_seen(visit.caller, rows)) for group, rows in found]
    return {"lines": lines, "find": find, "next_cursor": page.next_cursor, "query": visit.query}


async def read_group(visit: Visit) -> Values:
    name = visit.path["group"]
    details = await describe_group(visit.caller, name)
    page = await list_offsets(visit.caller, read_place(None, visit.query.get("cursor")), name)
    entry = visit.broker.groups.get(name)
    if entry is None:
        raise ServerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}")
    holders = {TopicPartition(at.topic, at.partition): each for each in details.members for at in each.assignment}
    lines = [
        PartitionLine(row.topic, row.partition, row, holders.get(TopicPartition(row.topic, row.partition)))
        for row in page.items
    ]
    if page.next_cursor is None:  # those without a committed offset come last, as on the command line
        others = sorted(where for where in holders if entry.offsets.get(where) is None)
        lines += [PartitionLine(*where, None, holders[where]) for where in others[:DEFAULT_LIMIT]]
    rows = (await visit.snapshot()).groups.get(name)
    return {
        "group": details,
        "members": details.members[:DEFAULT_LIMIT],
        "lines": lines,
        "lag": await lag_seen(visit.caller, rows) if rows is not None else GroupLag(),
        "next_cursor": page.next_cursor,
        "query": visit.query,
    }


PAGES: Final = (
    ConsolePage("/groups", "Groups", read_list, "groups_live.html", find="Name contains", in_navigation=True),
    ConsolePage("/groups/{group:path}", "Group", read_group, "group_live.html", "group.html"),
)
