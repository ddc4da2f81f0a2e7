"""Producers of a topic, or of one pid in all topics, with H(P); and the transactions that are open."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from fencepost.core.rows import ProducerDetails
from fencepost.core.security.access import TOPIC_READ
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.http.console.transactions import open_rows
from fencepost.server.storage.topics import Topic
from fencepost.server.views.paging import BadQuery, Page, PagePlace, cut, write_cursor
from fencepost.server.views.topics import OpenInPartition, TopicRows, list_producers, producer_row, seen_topics
from fencepost.server.views.transactions import hanging
from fencepost.types import Pid
from fencepost.wire.apis import Key

_MOST: Final = 20
"""Open transactions of the page, and hanging ones."""


class FoundProducer(NamedTuple):
    topic: str
    row: ProducerDetails


async def read(visit: Visit) -> Values:
    query = visit.query
    topic, pid = query.get("topic", "").strip(), read_pid(query.get("pid", ""))
    find = ""
    if topic and pid is None and not _is_seen(visit, topic):
        topic, find = "", topic  # perhaps a part of a name
    place = visit.place
    topics: Page[TopicRows] | None = None
    producers: Page[FoundProducer] | None = None
    if pid is not None:
        producers = await _producers_of(visit, place, pid, topic)
    elif topic:
        found = await list_producers(visit.caller, place, topic)
        producers = Page([FoundProducer(topic, row) for row in found.items], found.next_cursor)
    else:
        topics = await _topics(visit, place, find)
    opened = await open_rows(visit)
    return {
        "topic": topic,
        "pid": pid,
        "find": find,
        "topics": topics,
        "producers": producers,
        "opened": opened[:_MOST],
        "more_opened": len(opened) - _MOST,
        "hanging": await _hanging(visit),
        "duplicates": visit.broker.counters.duplicates,
    }


def _is_seen(visit: Visit, topic: str) -> bool:
    there = visit.broker.topics.get(topic) is not None
    return there and visit.caller.request(Key.DESCRIBE_PRODUCERS).sees(TOPIC_READ, topic)


def read_pid(text: str) -> Pid | None:
    """Return the pid of a query, None if it has none; raise BadQuery for other text."""
    text = text.strip()
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,19}", text):
        raise BadQuery(f"the producer id must be a number such as 4711, not {text[:20]!r}")
    return Pid(int(text))


async def _topics(visit: Visit, place: PagePlace, find: str) -> Page[TopicRows]:
    seen, there = await seen_topics(visit.caller, find, reads=True), (await visit.snapshot()).topics
    found, cursor = await cut(seen, lambda topic: (topic.name,), place)
    return Page([there[topic.name] for topic in found if topic.name in there], cursor)


async def _producers_of(visit: Visit, place: PagePlace, pid: Pid, topic: str) -> Page[FoundProducer]:
    """Return the partitions that remember the pid, in one topic or all, by topic and partition."""
    caller, after = visit.caller, place.after or ("", -1)
    if len(after) != 2 or not isinstance(after[0], str) or not isinstance(after[1], int):
        raise BadQuery("cursor is from another kind of list")
    request = caller.request(Key.DESCRIBE_PRODUCERS)
    if topic:
        request.require(TOPIC_READ, topic)
        topics: Iterable[Topic] = [caller.broker.topics.require(topic)]
    else:
        later = (each for each in caller.broker.topics if each.name >= after[0])
        topics = sorted(later, key=lambda each: each.name)
    found: list[FoundProducer] = []
    for each in topics:
        if not request.sees(TOPIC_READ, each.name):
            continue
        for partition in sorted(each.touched(), key=lambda partition: partition.index):
            entry = partition.log.producers.get(pid) if partition.log is not None else None
            if entry is not None and (each.name, partition.index) > after:
                if len(found) == place.limit:
                    return Page(found, write_cursor((found[-1].topic, found[-1].row.partition)))
                found.append(FoundProducer(each.name, producer_row(caller, partition.index, pid, entry)))
        await caller.turns()
    return Page(found, None)


async def _hanging(visit: Visit) -> list[OpenInPartition]:
    request = visit.caller.request(Key.DESCRIBE_PRODUCERS)
    found = hanging(visit.broker, (await visit.snapshot()).undecided)
    return [each for each in found if request.sees(TOPIC_READ, each.where.topic)][:_MOST]


PAGES: Final = (
    ConsolePage("/producers", "Producers", read, "producers_live.html", "producers.html", in_navigation=True),
)
