"""The pages of topics, groups, owners and sinks: lists, one topic, one group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.core.rows import GroupMember, GroupOffset, GroupSummary
from fencepost.core.security.access import CLUSTER_DESCRIBE, GROUP_DESCRIBE, TOPIC_READ
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.views.groups import GroupLag, describe_group, lag_seen, list_groups, list_offsets
from fencepost.server.views.owners import list_owners, list_takeovers, list_waiting_claims
from fencepost.server.views.paging import DEFAULT_LIMIT, cut, read_place
from fencepost.server.views.sinks import list_sinks
from fencepost.server.views.topics import describe_topic, partition_page, seen_topics, sees_sizes
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.storage.topics import Topic
    from fencepost.server.views.snapshot import Snapshot

_OPENED_FOR_A_PAGE: Final = 200
"""Closed partitions of which the list of topics opens the logs, to know their records."""


# -- topics -----------------------------------------------------------------------------------------------------


async def read_topics(visit: Visit) -> Values:
    caller = visit.caller
    with_internal = visit.query.get("internal") == "on"
    seen = await seen_topics(caller, visit.find, internal=with_internal)
    found, cursor = await cut(seen, lambda topic: (topic.name,), visit.place)
    left = _OPENED_FOR_A_PAGE
    for topic in found:
        left -= await _open_closed(topic, left)
    there = (await visit.snapshot()).topics
    return {
        "with_internal": with_internal,
        "topics": [there[topic.name] for topic in found if topic.name in there],
        "total": len(seen),
        "next_cursor": cursor,
        "sees_sizes": sees_sizes(caller),
    }


async def _open_closed(topic: Topic, left: int) -> int:
    """Open the closed logs of a topic if they are not too many; return their number."""
    closed = topic.partition_count - sum(partition.log is not None for partition in topic.touched())
    if not 0 < closed <= left:
        return 0
    for index in range(topic.partition_count):
        partition = topic.partition(index)
        if partition is not None and partition.log is None:
            try:
                await partition.open()
            except FencepostError:
                continue  # the log says why; the page shows that its records are not known
    return closed


async def read_topic(visit: Visit) -> Values:
    caller, name = visit.caller, visit.path["topic"]
    details = await describe_topic(caller, name)
    topic = caller.broker.topics.require(name)
    partitions = await partition_page(caller, topic, visit.place)
    snapshot = await visit.snapshot()
    return {
        "topic": details,
        "configs": sorted(details.configs or (), key=lambda each: (each.source != "topic", each.name)),
        "partitions": partitions.items,
        "next_cursor": partitions.next_cursor,
        "rows": snapshot.topics.get(name),
        "sees_sizes": sees_sizes(caller),
        "may_read": caller.request(Key.FETCH).sees(TOPIC_READ, name),
        "groups": _groups(visit, snapshot, name),
        "writers": topic.writer_group or ", ".join(topic.writer_ids),
        "readers": topic.reader_group,
    }


def _groups(visit: Visit, snapshot: Snapshot, topic: str) -> list[str]:
    """Return the groups that have committed offsets of the topic."""
    names = sorted(name for name, group in snapshot.groups.items() if topic in group.topics)
    request = visit.caller.request(Key.LIST_GROUPS)
    sees_all = request.sees(CLUSTER_DESCRIBE)
    return [name for name in names if sees_all or request.sees(GROUP_DESCRIBE, name)]


# -- groups -----------------------------------------------------------------------------------------------------


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


async def read_groups(visit: Visit) -> Values:
    page = await list_groups(visit.caller, visit.place, visit.find)
    there = (await visit.snapshot()).groups
    found = [(group, there[group.name]) for group in page.items if group.name in there]
    lines = [GroupLine(group, rows.members, await lag_seen(visit.caller, rows)) for group, rows in found]
    return {"lines": lines, "next_cursor": page.next_cursor}


async def read_group(visit: Visit) -> Values:
    name = visit.path["group"]
    details = await describe_group(visit.caller, name)
    page = await list_offsets(visit.caller, visit.place, name)
    entry = visit.broker.groups.get(name)
    if entry is None:
        raise ServerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}")
    holders = {at: each for each in details.members for at in each.assignment}
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
    }


# -- owners and sinks -------------------------------------------------------------------------------------------

_ROWS: Final = "50"
"""Waiting claims and take-overs of a page, beside the owners."""
_FRESH_MS: Final = 3000
"""A take-over that is younger than this catches the eye."""
_NAMES: Final = 10
"""Resources of a waiting claim that are named; a claim may have thousands."""


async def read_owners(visit: Visit) -> Values:
    """The three lists have cursors of their own: `cursor`, `waiting` and `takeovers`."""
    query, caller, find = visit.query, visit.caller, visit.find
    return {
        "owners": await list_owners(caller, visit.place, None, find),
        "waiting": await list_waiting_claims(caller, read_place(_ROWS, query.get("waiting")), None, find),
        "names": _NAMES,
        "takeovers": await list_takeovers(caller, read_place(_ROWS, query.get("takeovers")), None, find),
        "fresh_from_ms": caller.broker.clock.now_ms() - _FRESH_MS,
    }


async def read_sinks(visit: Visit) -> Values:
    page = await list_sinks(visit.caller, visit.place, visit.find)
    return {"sinks": page.items, "next_cursor": page.next_cursor}


TOPIC_PAGES: Final = (
    ConsolePage("/topics", "Topics", read_topics, "topics_live.html", "topics.html", in_navigation=True),
    ConsolePage("/topics/{topic}", "Topic", read_topic, "topic_live.html", "topic.html"),
)
OTHER_PAGES: Final = (
    ConsolePage("/owners", "Owners", read_owners, "owners_live.html", find="Group or resource", in_navigation=True),
    ConsolePage("/groups", "Groups", read_groups, "groups_live.html", find="Name contains", in_navigation=True),
    ConsolePage("/groups/{group:path}", "Group", read_group, "group_live.html", "group.html"),
    ConsolePage("/sinks", "Sinks", read_sinks, "sinks_live.html", find="Name contains", in_navigation=True),
)
