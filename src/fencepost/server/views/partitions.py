"""Partitions and topics. The numbers of a closed partition are not known without opening its log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.server.net.turns import Turns

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog
    from fencepost.server.storage.partition import Partition
    from fencepost.server.storage.topics import Topic

PIECE: Final = 500
"""Rows that are read in one turn: about a millisecond."""


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


class TopicRows(NamedTuple):
    name: str
    partitions: int
    """All of them, also the closed ones."""
    rows: list[PartitionRow]
    """The open ones."""

    @property
    def sums(self) -> TopicSums:
        if not self.rows:
            return TopicSums()
        _, starts, ends, _, *others = map(sum, zip(*self.rows, strict=True))
        return TopicSums(len(self.rows), ends - starts, *others)


async def read_topics(topics: Iterable[Topic], turns: Turns) -> list[TopicRows]:
    """Read the open partitions of these topics, in pieces. Small topics share one."""
    found = []
    work = 0
    for topic in topics:
        rows: list[PartitionRow] = []
        touched = topic.touched()
        for at in range(0, len(touched), PIECE):
            some = touched[at : at + PIECE]
            rows += [partition_row(each, each.log) for each in some if each.log is not None]
            work += len(some)
            if work >= PIECE:
                work = 0
                await turns()
        found.append(TopicRows(topic.name, topic.partition_count, rows))
        work += 1
    return found
