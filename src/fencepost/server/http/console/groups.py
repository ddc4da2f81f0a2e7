"""Consumer groups: the list, and one group with its members, offsets and lag."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.core.rows import GroupMember, GroupOffset, GroupSummary
from fencepost.core.security.access import TOPIC_DESCRIBE
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.http.console.overview import thin
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.http.v1.paging import DEFAULT_LIMIT, read_place
from fencepost.server.http.v1.views import describe_group, list_groups, list_offsets
from fencepost.server.views.groups import GroupLag, read_groups
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.coordinators.group_memory import GroupEntry

_FEW: Final = 20
"""Groups with more committed offsets show the lag of the last sample in the list: counting costs too much there."""


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
    lines = []
    for group in page.items:
        entry = visit.broker.groups.get(group.name)
        if entry is not None:  # else it was deleted in the meantime
            lag = visit.history.last_lag(group.name) if len(entry.offsets) > _FEW and _sees_all(visit) else None
            lines.append(GroupLine(group, len(entry.group.members), lag or await _lag(visit, entry)))
    return {"lines": lines, "find": find, "next_cursor": page.next_cursor, "query": visit.query}


async def read_group(visit: Visit) -> Values:
    name = visit.path["group"]
    details = await describe_group(visit.caller, name)
    page = await list_offsets(visit.caller, read_place(None, visit.query.get("cursor")), name)
    entry = visit.broker.groups.get(name)
    if entry is None:
        raise ServerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}")
    visit.history.want(name)
    see = _sight(visit)
    sees_all = see is None or all(see(topic) for topic in {where.topic for where in entry.offsets})
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
        "lag": await _lag(visit, entry),
        "chart": lag_chart(visit, name) if sees_all else None,
        "next_cursor": page.next_cursor,
        "query": visit.query,
    }


async def _lag(visit: Visit, entry: GroupEntry) -> GroupLag:
    [group] = await read_groups([entry], visit.broker.topics, visit.caller.turns, _sight(visit))
    return group.lag


def lag_chart(visit: Visit, group: str) -> str:
    """Return the points of the lag over the last hour: times in seconds, then values, null where it was not known."""
    history = visit.history
    times = [sample.taken_ms // 1000 for sample in history.samples]
    lags = history.lags.of(group) or [None] * len(times)
    points = thin(list(zip(times, lags, strict=True)))
    return json.dumps([[time for time, _ in points], [lag for _, lag in points]])


def _sees_all(visit: Visit) -> bool:
    return not visit.broker.authorizer.enabled


def _sight(visit: Visit) -> Callable[[str], bool] | None:
    """Return a function that tells if the user may see a topic; None if everyone sees everything."""
    if _sees_all(visit):
        return None
    request = visit.caller.request(Key.OFFSET_FETCH)
    return lambda topic: request.sees(TOPIC_DESCRIBE, topic)


PAGES: Final = (
    ConsolePage("/groups", "Groups", read_list, "groups_live.html", find="Name contains", in_navigation=True),
    ConsolePage("/groups/{group:path}", "Group", read_group, "group_live.html", "group.html", has_charts=True),
)
