"""Consumer groups: the list, and one group with its members, offsets and lag."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.core.rows import GroupMember, GroupOffset, GroupSummary
from fencepost.core.security.access import TOPIC_DESCRIBE
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.views.groups import GroupLag, describe_group, list_groups, list_offsets
from fencepost.server.views.paging import DEFAULT_LIMIT, read_place
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.views.snapshot import Snapshot


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
    snapshot = await visit.snapshot()
    lines = []
    for group in page.items:
        entry = visit.broker.groups.get(group.name)
        if entry is not None:  # else it was deleted in the meantime
            lines.append(GroupLine(group, len(entry.group.members), _lag(visit, snapshot, group.name)))
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
    return {
        "group": details,
        "members": details.members[:DEFAULT_LIMIT],
        "lines": lines,
        "lag": _lag(visit, await visit.snapshot(), name),
        "next_cursor": page.next_cursor,
        "query": visit.query,
    }


def _lag(visit: Visit, snapshot: Snapshot, name: str) -> GroupLag:
    """Return the lag in the topics that the user may see."""
    group, request = snapshot.groups.get(name), visit.caller.request(Key.OFFSET_FETCH)
    if group is None:  # it is newer than the snapshot
        return GroupLag()
    return group.lag if not visit.broker.authorizer.enabled else group.seen(partial(request.sees, TOPIC_DESCRIBE))


PAGES: Final = (
    ConsolePage("/groups", "Groups", read_list, "groups_live.html", find="Name contains", in_navigation=True),
    ConsolePage("/groups/{group:path}", "Group", read_group, "group_live.html", "group.html"),
)
