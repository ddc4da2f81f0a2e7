"""Topics: the list, and one topic with its configs and partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.core.security.access import CLUSTER_DESCRIBE, GROUP_DESCRIBE, TOPIC_READ
from fencepost.errors import FencepostError
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.views.paging import cut, read_place
from fencepost.server.views.topics import describe_topic, partition_page, seen_topics, sees_sizes
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.storage.topics import Topic
    from fencepost.server.views.snapshot import Snapshot

_OPENED_FOR_A_PAGE: Final = 200
"""Closed partitions of which the list of topics opens the logs, to know their records."""


async def read_list(visit: Visit) -> Values:
    caller = visit.caller
    with_internal = visit.query.get("internal") == "on"
    seen = await seen_topics(caller, visit.query.get("find", "").strip(), internal=with_internal)
    found, cursor = await cut(seen, lambda topic: (topic.name,), read_place(None, visit.query.get("cursor")))
    left = _OPENED_FOR_A_PAGE
    for topic in found:
        left -= await _open_closed(topic, left)
    there = (await visit.snapshot()).topics
    return {
        "query": visit.query,
        "find": visit.query.get("find", ""),
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


async def read_one(visit: Visit) -> Values:
    caller, name = visit.caller, visit.path["topic"]
    details = await describe_topic(caller, name)
    topic = caller.broker.topics.require(name)
    partitions = await partition_page(caller, topic, read_place(None, visit.query.get("cursor")))
    snapshot = await visit.snapshot()
    return {
        "query": visit.query,
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


PAGES: Final = (
    ConsolePage("/topics", "Topics", read_list, "topics_live.html", "topics.html", in_navigation=True),
    ConsolePage("/topics/{topic}", "Topic", read_one, "topic_live.html", "topic.html"),
)
