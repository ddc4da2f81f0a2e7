"""Topics: the list, and one topic with its configs and partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from fencepost.core.security.access import CLUSTER_DESCRIBE, GROUP_DESCRIBE, TOPIC_DESCRIBE, TOPIC_READ
from fencepost.errors import FencepostError
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.http.v1.answers import PartitionJson
from fencepost.server.http.v1.asking import HttpCaller
from fencepost.server.http.v1.paging import BadQuery, PagePlace, cut, read_place, write_cursor
from fencepost.server.http.v1.topics import describe_topic
from fencepost.server.net.turns import paced
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog
    from fencepost.server.storage.topics import Topic

_OPENED_FOR_A_PAGE: Final = 200
"""Closed partitions of which the list of topics opens the logs, to know their records."""
_PARTITIONS_A_SECOND: Final = 1000
_SUMS_SECONDS: Final = 1.9
"""The sums of a topic are at most this old, or a second for each so many partitions."""
_MOST_GROUPS: Final = 500
_MOST_OFFSETS: Final = 2000
"""Groups that are looked at, and committed offsets of each: whether they read a topic."""
_GROUPS_SECONDS: Final = 10.0


class TopicSums(NamedTuple):
    records: int | None
    """Offsets from the start to the end of all partitions, as `fencepost topic describe` counts; None if some logs are
    closed."""
    size: int | None


class TopicRow(NamedTuple):
    name: str
    partitions: int
    internal: bool
    sums: TopicSums


_sums: WeakKeyDictionary[Topic, tuple[float, TopicSums]] = WeakKeyDictionary()
"""With the time until which they are good enough: many browsers may watch a list."""
_readers: WeakKeyDictionary[Topic, tuple[float, list[str]]] = WeakKeyDictionary()


async def read_list(visit: Visit) -> Values:
    caller = visit.caller
    find = visit.query.get("find", "").strip().lower()
    with_internal = visit.query.get("internal") == "on"
    request = caller.request(Key.DESCRIBE_TOPIC_PARTITIONS)
    seen = [
        topic
        async for topic in paced(list(caller.broker.topics))
        if find in topic.name.lower()
        and (with_internal or not topic.name.startswith("__"))
        and request.sees(TOPIC_DESCRIBE, topic.name)
    ]
    found, cursor = await cut(seen, lambda topic: (topic.name,), read_place(None, visit.query.get("cursor")))
    left = _OPENED_FOR_A_PAGE
    rows = []
    for topic in found:
        left -= await _open_closed(topic, left)
        sums = await _summed(caller, topic)
        rows.append(TopicRow(topic.name, topic.partition_count, topic.name.startswith("__"), sums))
    return {
        "query": visit.query,
        "find": visit.query.get("find", ""),
        "with_internal": with_internal,
        "topics": rows,
        "total": len(seen),
        "next_cursor": cursor,
        "sees_sizes": _sees_sizes(caller),
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


async def _summed(caller: HttpCaller, topic: Topic) -> TopicSums:
    now = caller.broker.clock.monotonic()
    good_until, sums = _sums.get(topic, (0.0, None))
    if sums is None or now >= good_until:
        records = size = opened = 0
        async for log in _logs(topic):
            opened += 1
            records += log.high_watermark - log.start_offset
            size += log.size
        is_whole = opened == topic.partition_count
        sums = TopicSums(records if is_whole else None, size if is_whole else None)
        _sums[topic] = now + max(topic.partition_count / _PARTITIONS_A_SECOND, _SUMS_SECONDS), sums
    return sums if _sees_sizes(caller) else sums._replace(size=None)


async def _logs(topic: Topic) -> AsyncIterator[PartitionLog]:
    async for partition in paced(topic.touched()):
        if partition.log is not None:
            yield partition.log


def _sees_sizes(caller: HttpCaller) -> bool:
    """Sizes are what DescribeLogDirs tells, and need the same permission."""
    return caller.request(Key.DESCRIBE_LOG_DIRS).sees(CLUSTER_DESCRIBE)


async def read_one(visit: Visit) -> Values:
    caller, name = visit.caller, visit.path["topic"]
    details = await describe_topic(caller, name)
    topic = caller.broker.topics.require(name)
    partitions, cursor = await _partitions(caller, topic, read_place(None, visit.query.get("cursor")))
    sums = await _summed(caller, topic)
    return {
        "query": visit.query,
        "topic": details,
        "configs": sorted(details.configs or (), key=lambda each: (each.source != "topic", each.name)),
        "partitions": partitions,
        "next_cursor": cursor,
        "sums": sums,
        "may_read": caller.request(Key.FETCH).sees(TOPIC_READ, name),
        "groups": await _groups(caller, topic),
        "writers": topic.writer_group or ", ".join(topic.writer_ids),
        "readers": topic.reader_group,
    }


async def _partitions(caller: HttpCaller, topic: Topic, place: PagePlace) -> tuple[list[PartitionJson], str | None]:
    """Return a page of partitions, with the numbers of ListOffsets and DescribeLogDirs: a page that is watched asks
    every second, so it asks the logs themselves."""
    after = place.after[0] if place.after is not None else -1
    if not isinstance(after, int):
        raise BadQuery("cursor is from another kind of list")
    sees_sizes, node = _sees_sizes(caller), caller.broker.config.node_id
    indexes = range(max(after, -1) + 1, topic.partition_count)[: place.limit]
    rows = []
    for index in indexes:
        partition = topic.partition(index)
        if partition is not None:
            log = partition.log or await partition.open()
            size = log.size if sees_sizes else None
            rows.append(PartitionJson(index, node, log.start_offset, log.high_watermark, log.last_stable_offset, size))
    is_last = not indexes or indexes[-1] == topic.partition_count - 1
    return rows, None if is_last else write_cursor((indexes[-1],))


async def _groups(caller: HttpCaller, topic: Topic) -> list[str]:
    """Return the groups that have committed offsets of the topic: of the first few hundred groups."""
    now = caller.broker.clock.monotonic()
    good_until, names = _readers.get(topic, (0.0, []))
    if now >= good_until:
        names = []
        async for entry in paced(list(caller.broker.groups)[:_MOST_GROUPS]):
            if any(where.topic == topic.name for where in list(entry.offsets)[:_MOST_OFFSETS]):
                names.append(entry.group_id)
        _readers[topic] = now + _GROUPS_SECONDS, sorted(names)
    request = caller.request(Key.LIST_GROUPS)
    sees_all = request.sees(CLUSTER_DESCRIBE)
    return [name for name in sorted(names) if sees_all or request.sees(GROUP_DESCRIBE, name)]


PAGES: Final = (
    ConsolePage("/topics", "Topics", "topics.html", read_list, "topics_live.html", True),
    ConsolePage("/topics/{topic}", "Topic", "topic.html", read_one, "topic_live.html"),
)
