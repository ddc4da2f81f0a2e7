"""Topics, their partitions and their producers."""

from __future__ import annotations

from typing import Any, Final

from fencepost.core.security.access import TOPIC_DESCRIBE
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.http.v1.answers import ConfigJson, PartitionJson, ProducerJson, TopicDetailsJson, TopicJson
from fencepost.server.http.v1.asking import HttpCaller, check
from fencepost.server.http.v1.paging import Page, PagePlace, cut, write_cursor
from fencepost.server.net.router import Fields
from fencepost.server.net.turns import paced
from fencepost.types import EARLIEST, LATEST
from fencepost.wire.apis import Key

_TOPIC: Final = 2
_SOURCES: Final = {1: "topic", 4: "static", 5: "default"}
_READ_COMMITTED: Final = 1


async def list_topics(caller: HttpCaller, place: PagePlace) -> Page[TopicJson]:
    request = caller.request(Key.DESCRIBE_TOPIC_PARTITIONS)
    seen = [topic async for topic in paced(list(caller.broker.topics)) if request.sees(TOPIC_DESCRIBE, topic.name)]
    rows, cursor = await cut(seen, lambda topic: (topic.name,), place)
    return Page(
        [TopicJson(row.name, str(row.topic_id), row.partition_count, row.name.startswith("__")) for row in rows], cursor
    )


async def describe_topic(caller: HttpCaller, topic: str) -> TopicDetailsJson:
    row = await _described(caller, topic)
    asked = {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}
    [found] = (await caller.ask(Key.DESCRIBE_CONFIGS, resources=[asked], include_synonyms=False))["results"]
    configs = None
    if found["error_code"] == ErrorCode.NONE:
        configs = [
            ConfigJson(each["name"], each["value"], _SOURCES[each["config_source"]]) for each in found["configs"]
        ]
    known = caller.broker.topics.require(topic)
    return TopicDetailsJson(topic, str(row["topic_id"]), known.partition_count, row["is_internal"], configs)


async def _described(caller: HttpCaller, topic: str) -> Fields:
    """Return the topic as DescribeTopicPartitions does, or raise ServerError."""
    answer = await caller.ask(
        Key.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": topic}], cursor=None, response_partition_limit=1
    )
    [row] = answer["topics"]
    check(row, f"topic {topic!r}")
    return dict(row)


async def list_partitions(caller: HttpCaller, place: PagePlace, topic: str) -> Page[PartitionJson]:
    await _described(caller, topic)
    everything = range(caller.broker.topics.require(topic).partition_count)
    indexes, cursor = await cut(everything, lambda index: (index,), place)
    starts = await offsets(caller, topic, indexes, EARLIEST)
    stables = await offsets(caller, topic, indexes, LATEST, committed=True)
    ends = await offsets(caller, topic, indexes, LATEST)  # last: it is never before the others
    sizes = await _sizes(caller, topic, indexes)
    node = caller.broker.config.node_id
    return Page(
        [PartitionJson(index, node, starts[index], ends[index], stables[index], sizes.get(index)) for index in indexes],
        cursor,
    )


async def offsets(
    caller: HttpCaller, topic: str, indexes: list[int], timestamp: int, *, committed: bool = False
) -> dict[int, int]:
    """Return the offsets that ListOffsets finds, or raise ServerError."""
    partitions = [{"partition_index": index, "timestamp": timestamp} for index in indexes]
    answer = await caller.ask(
        Key.LIST_OFFSETS,
        replica_id=-1,
        isolation_level=_READ_COMMITTED if committed else 0,
        topics=[{"name": topic, "partitions": partitions}],
    )
    found = {}
    for row in answer["topics"][0]["partitions"]:
        check(row, f"partition {topic}-{row['partition_index']}")
        found[row["partition_index"]] = row["offset"]
    return found


async def _sizes(caller: HttpCaller, topic: str, indexes: list[int]) -> dict[int, int]:
    try:
        answer = await caller.ask(Key.DESCRIBE_LOG_DIRS, topics=[{"topic": topic, "partitions": indexes}])
    except ServerError as error:
        if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return {}
        raise
    rows: list[Any] = [row for found in answer["results"][0]["topics"] for row in found["partitions"]]
    return {row["partition_index"]: row["partition_size"] for row in rows}


async def list_producers(caller: HttpCaller, place: PagePlace, topic: str) -> Page[ProducerJson]:
    """Return producers by partition and pid: partition after partition, because each may have very many."""
    await _described(caller, topic)
    first = place.after[0] if place.after is not None else 0
    rows: list[ProducerJson] = []
    for index in range(first if isinstance(first, int) else 0, caller.broker.topics.require(topic).partition_count):
        asked = [{"name": topic, "partition_indexes": [index]}]
        [found] = (await caller.ask(Key.DESCRIBE_PRODUCERS, topics=asked))["topics"][0]["partitions"]
        check(found, f"partition {topic}-{index}")
        left = place._replace(limit=place.limit - len(rows))
        page, more = await cut(found["active_producers"], lambda row: (index, row["producer_id"]), left)  # noqa: B023
        rows += [_producer(index, row) for row in page]
        if more is not None or len(rows) == place.limit:
            return Page(rows, write_cursor((index, rows[-1].pid)))
    return Page(rows, None)


def _producer(index: int, row: Fields) -> ProducerJson:
    start = row["current_txn_start_offset"]
    return ProducerJson(
        index,
        row["producer_id"],
        row["producer_epoch"],
        row["last_sequence"],
        row["last_timestamp"],
        start if start >= 0 else None,
    )
