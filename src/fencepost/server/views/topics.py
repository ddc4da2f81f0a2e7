"""Topics, their partitions and producers. The numbers of a closed partition are not known without opening its log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost._version import __version__
from fencepost.core.rows import (
    BrokerRow,
    ClusterRow,
    ConfigRow,
    PartitionDetails,
    ProducerDetails,
    TopicDetailsRow,
    TopicRow,
)
from fencepost.core.security.access import (
    CLUSTER_DESCRIBE,
    TOPIC_DESCRIBE,
    TOPIC_READ,
    TRANSACTIONAL_ID_DESCRIBE,
)
from fencepost.errors import ErrorCode
from fencepost.server.net.turns import Turns, paced
from fencepost.server.views.asking import HttpCaller, check
from fencepost.server.views.paging import BadQuery, Page, PagePlace, cut, write_cursor
from fencepost.types import NO_PID, Offset, Pid, TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.core.producers.dedup import ProducerEntry
    from fencepost.log.partition import PartitionLog
    from fencepost.server.net.router import Fields
    from fencepost.server.storage.partition import Partition
    from fencepost.server.storage.topics import Topic

PIECE: Final = 500
"""Rows that are read in one turn: about a millisecond."""
MOST_UNDECIDED: Final = 1000


class PartitionRow(NamedTuple):
    partition: int
    start: int
    end: int
    """The high watermark: readers see what is before it."""
    stable: int
    """The last stable offset: what readers of committed records see ends there."""
    size: int
    appended_records: int
    """Since the start of the server."""
    appended_bytes: int
    fetched_bytes: int
    producers: int


def partition_row(partition: Partition, log: PartitionLog) -> PartitionRow:
    return PartitionRow(
        partition.index,
        log.start_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.size,
        partition.appended_records,
        partition.appended_bytes,
        partition.fetched_bytes,
        log.producers.weight,
    )


class TopicSums(NamedTuple):
    """Sums over the open partitions of a topic."""

    opened: int = 0
    records: int = 0
    """Offsets from the start to the end, as `fencepost topic describe` counts."""
    size: int = 0
    appended_records: int = 0
    appended_bytes: int = 0
    fetched_bytes: int = 0
    producers: int = 0

    def __add__(self, other: tuple[object, ...]) -> TopicSums:
        return TopicSums(*map(sum, zip(self, other, strict=True)))  # type: ignore[arg-type]

    @classmethod
    def of(cls, rows: list[PartitionRow]) -> TopicSums:
        if not rows:
            return cls()
        _, starts, ends, _, *others = map(sum, zip(*rows, strict=True))
        return cls(len(rows), ends - starts, *others)


class OpenInPartition(NamedTuple):
    """A transaction that is open in a partition."""

    where: TopicPartition
    pid: Pid
    first_offset: Offset


class TopicRows(NamedTuple):
    name: str
    partitions: int
    """All of them, also the closed ones."""
    rows: list[PartitionRow]
    """The open ones."""
    sums: TopicSums
    undecided: list[OpenInPartition]
    """Transactions that hold readers back, at most `MOST_UNDECIDED`."""

    @property
    def is_open(self) -> bool:
        """The sums are those of all partitions."""
        return self.sums.opened == self.partitions


async def read_topics(topics: Iterable[Topic], turns: Turns) -> list[TopicRows]:
    """Read the open partitions of these topics, in pieces. Small topics share one."""
    read = []
    work = 0
    for topic in topics:
        rows: list[PartitionRow] = []
        sums = TopicSums()
        undecided: list[OpenInPartition] = []
        touched = topic.touched()
        for at in range(0, len(touched), PIECE):
            some = [(each, each.log) for each in touched[at : at + PIECE] if each.log is not None]
            found = [partition_row(each, log) for each, log in some]
            rows += found
            sums += TopicSums.of(found)
            for (each, log), row in zip(some, found, strict=True):
                if row.stable < row.end and len(undecided) < MOST_UNDECIDED:
                    undecided += [OpenInPartition(each.name, *one) for one in log.producers.open_transactions()]
            work += len(some)
            if work >= PIECE:
                work = 0
                await turns()
        read.append(TopicRows(topic.name, topic.partition_count, rows, sums, undecided[:MOST_UNDECIDED]))
        work += 1
    return read


# -- pages of rows ------------------------------------------------------------------------------------------


async def describe_cluster(caller: HttpCaller) -> ClusterRow:
    found = await caller.ask(Key.DESCRIBE_CLUSTER, include_cluster_authorized_operations=False, endpoint_type=1)
    brokers = [BrokerRow(row["broker_id"], row["host"], row["port"]) for row in found["brokers"]]
    return ClusterRow(found["cluster_id"], found["controller_id"], brokers, __version__)


_TOPIC: Final = 2
_SOURCES: Final = {1: "topic", 4: "static", 5: "default"}
_READ_COMMITTED: Final = 1


async def seen_topics(
    caller: HttpCaller, find: str = "", *, prefix: str = "", internal: bool = True, reads: bool = False
) -> list[Topic]:
    """Return the topics that the caller may describe, or with `reads` read, whose names have `prefix` and behind it
    contain `find`, in capitals or not."""
    key, need = (Key.DESCRIBE_PRODUCERS, TOPIC_READ) if reads else (Key.DESCRIBE_TOPIC_PARTITIONS, TOPIC_DESCRIBE)
    request, wanted = caller.request(key), find.lower()
    return [
        topic
        async for topic in paced(list(caller.broker.topics))
        if topic.name.startswith(prefix)
        and wanted in topic.name.removeprefix(prefix).lower()
        and (internal or not topic.name.startswith("__"))
        and request.sees(need, topic.name)
    ]


async def list_topics(caller: HttpCaller, place: PagePlace) -> Page[TopicRow]:
    rows, cursor = await cut(await seen_topics(caller), lambda topic: (topic.name,), place)
    return Page(
        [TopicRow(row.name, row.topic_id, row.partition_count, row.name.startswith("__")) for row in rows], cursor
    )


async def describe_topic(caller: HttpCaller, topic: str) -> TopicDetailsRow:
    row = await _described(caller, topic)
    asked = {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}
    [found] = (await caller.ask(Key.DESCRIBE_CONFIGS, resources=[asked], include_synonyms=False))["results"]
    configs = None
    if found["error_code"] == ErrorCode.NONE:
        configs = [ConfigRow(each["name"], each["value"], _SOURCES[each["config_source"]]) for each in found["configs"]]
    known = caller.broker.topics.require(topic)
    return TopicDetailsRow(topic, row["topic_id"], known.partition_count, row["is_internal"], configs)


async def _described(caller: HttpCaller, topic: str) -> Fields:
    """Return the topic as DescribeTopicPartitions does, or raise ServerError."""
    answer = await caller.ask(
        Key.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": topic}], cursor=None, response_partition_limit=1
    )
    [row] = answer["topics"]
    check(row, f"topic {topic!r}")
    return dict(row)


async def list_partitions(caller: HttpCaller, place: PagePlace, topic: str) -> Page[PartitionDetails]:
    await _described(caller, topic)
    return await partition_page(caller, caller.broker.topics.require(topic), place)


async def partition_page(caller: HttpCaller, topic: Topic, place: PagePlace) -> Page[PartitionDetails]:
    """Return a page of partitions, with the numbers of ListOffsets and DescribeLogDirs: a page that is watched asks
    every second, so it asks the logs themselves."""
    indexes, cursor = await cut(range(topic.partition_count), lambda index: (index,), place)
    with_sizes, node = sees_sizes(caller), caller.broker.config.node_id
    items = []
    for index in indexes:
        partition = caller.broker.partition(topic.name, index)
        row = partition_row(partition, partition.log or await partition.open())
        items.append(PartitionDetails(index, node, row.start, row.end, row.stable, row.size if with_sizes else None))
        await caller.turns()
    return Page(items, cursor)


def sees_sizes(caller: HttpCaller) -> bool:
    """Sizes are what DescribeLogDirs tells, and need the same permission."""
    return caller.request(Key.DESCRIBE_LOG_DIRS).sees(CLUSTER_DESCRIBE)


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


async def list_producers(caller: HttpCaller, place: PagePlace, topic: str) -> Page[ProducerDetails]:
    """Return producers by partition and pid: partition after partition, because each may have very many."""
    await _described(caller, topic)
    caller.request(Key.DESCRIBE_PRODUCERS).require(TOPIC_READ, topic)
    first, pid = _place_of_producer(place)
    rows: list[ProducerDetails] = []
    for index in range(first, caller.broker.topics.require(topic).partition_count):
        log = await caller.broker.partition(topic, index).open()
        pids = log.producers.pids()
        left = place.limit - len(rows)
        start = bisect_right(pids, pid) if index == first else 0
        found = ((each, log.producers.get(each)) for each in pids[start : start + left])
        rows += [producer_row(caller, index, each, entry) for each, entry in found if entry is not None]
        if len(rows) == place.limit:
            return Page(rows, write_cursor((index, rows[-1].pid)))
        await caller.turns()
    return Page(rows, None)


def _place_of_producer(place: PagePlace) -> tuple[int, Pid]:
    """Return the partition and pid after which the page begins."""
    if place.after is None:
        return 0, NO_PID
    if len(place.after) != 2 or not all(isinstance(part, int) for part in place.after) or place.after[0] < 0:
        raise BadQuery("cursor is from another kind of list")
    return place.after[0], Pid(place.after[1])


def producer_row(caller: HttpCaller, index: int, pid: Pid, entry: ProducerEntry) -> ProducerDetails:
    name = caller.broker.transactions.name_of(pid)
    if name is not None and not caller.request(Key.DESCRIBE_TRANSACTIONS).sees(TRANSACTIONAL_ID_DESCRIBE, name):
        name = None
    return ProducerDetails(
        index,
        pid,
        entry.epoch,
        entry.last_sequence,
        entry.batches[-1].timestamp if entry.batches else -1,
        entry.transaction_start,
        entry.last_offset,
        entry.duplicates,
        name,
    )
