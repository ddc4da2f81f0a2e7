"""Partitions, and the committed offsets of groups, read on the loop as columns.

A server has thousands of them, and a scrape may come every second. So the loop makes no object per partition: it reads
one list per figure, for many partitions at a time. Such a piece is read in one turn. So a group's lag belongs to one
moment, and is never negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.log.partition import PartitionLog
from fencepost.server.metrics.record_lag import LagSpan
from fencepost.server.net.turns import Turns
from fencepost.types import Offset, TopicPartition

if TYPE_CHECKING:
    from fencepost.core.groups.offsets import OffsetTable
    from fencepost.server.coordinators.group_memory import GroupEntry
    from fencepost.server.storage.partition import Partition
    from fencepost.server.storage.topics import Topic, Topics

PIECE: Final = 1000
"""Rows that are read in one turn: about a millisecond."""


class TopicRows(NamedTuple):
    """A topic, and the place of its open partitions in the columns."""

    name: str
    partitions: int
    """All of them, also the closed ones."""
    first: int
    stop: int


class PartitionColumns:
    """The open partitions. A closed one is not known without reading its files."""

    def __init__(self) -> None:
        self.topics: list[TopicRows] = []
        self.numbers: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        """The high watermarks: readers see what is before them."""
        self.stables: list[int] = []
        """The last stable offsets: what readers of committed records see ends there."""
        self.sizes: list[int] = []
        self.appended_bytes: list[int] = []
        self.appended_records: list[int] = []
        self.producers: list[int] = []

    def __len__(self) -> int:
        return len(self.numbers)

    async def read(self, topics: Iterable[Topic], turns: Turns) -> None:
        """Add the partitions of these topics. Small topics share a piece."""
        found: list[tuple[Partition, PartitionLog]] = []
        rows = work = 0
        for topic in topics:
            first = rows
            touched = topic.touched()
            for at in range(0, len(touched), PIECE):
                some = touched[at : at + PIECE]
                found += [(each, each.log) for each in some if each.log is not None]
                rows = len(self) + len(found)
                work += len(some)
                if work >= PIECE:
                    self._add(found)
                    found, work = [], 0
                    await turns()
            self.topics.append(TopicRows(topic.name, topic.partition_count, first, rows))
            work += 1
        self._add(found)

    def _add(self, found: Sequence[tuple[Partition, PartitionLog]]) -> None:
        partitions = [each for each, _ in found]
        logs = [log for _, log in found]
        self.numbers += [each.index for each in partitions]
        self.starts += [log.start_offset for log in logs]
        self.ends += [log.high_watermark for log in logs]
        self.stables += [log.last_stable_offset for log in logs]
        self.sizes += [log.size for log in logs]
        self.appended_bytes += [each.appended_bytes for each in partitions]
        self.appended_records += [each.appended_records for each in partitions]
        self.producers += [log.producers.weight for log in logs]


class GroupRows(NamedTuple):
    """A group, and the places of its committed offsets in the columns."""

    name: str
    members: int
    topics: list[tuple[str, int, int]]
    """Each topic with its first row, and the row after its last."""

    @property
    def offsets(self) -> int:
        return self.topics[-1][2] - self.topics[0][1] if self.topics else 0


class GroupColumns:
    """The committed offsets of all groups."""

    def __init__(self) -> None:
        self.groups: list[GroupRows] = []
        self.numbers: list[int] = []
        """Of the partitions."""
        self.committed: list[int] = []
        self.lags: list[int | None] = []
        """None: the partition is closed, so its end is not known."""
        self.records: list[int | None] = []
        """The lags in records. None: the partition is closed, or they are not counted yet."""
        self.spans: list[tuple[int, TopicPartition, LagSpan]] = []
        """The rows whose records must be counted."""

    def add(self, partitions: Sequence[Partition | None], committed: Sequence[int]) -> None:
        """Add rows to all columns but `numbers`."""
        logs = [(each.log or _CLOSED) if each is not None else _CLOSED for each in partitions]
        ends = [log.high_watermark for log in logs]
        stables = [log.last_stable_offset for log in logs]
        first = len(self.lags)
        self.committed += committed
        # A client may commit any offset, also one behind the end.
        self.lags += [
            (end - at if end > at else 0) if end >= 0 else None for end, at in zip(ends, committed, strict=True)
        ]
        records = [
            (stable - at if stable > at else 0) if at >= log.dense_from and at >= log.cleaned_offset else None
            for log, stable, at in zip(logs, stables, committed, strict=True)
        ]
        self.records += records
        if None in records:
            for row, (each, log, stable, at) in enumerate(zip(partitions, logs, stables, committed, strict=True)):
                if records[row] is None and each is not None and isinstance(log, PartitionLog):
                    self.spans.append((first + row, each.name, LagSpan(log, Offset(at), stable)))


class _Closed:
    """A stand-in for the log of a closed partition."""

    high_watermark = last_stable_offset = Offset(-1)
    dense_from = cleaned_offset = Offset(1 << 63)


_CLOSED: Final = _Closed()


class _Layout(NamedTuple):
    """The partitions of which a group has offsets: they stay the same while it commits."""

    version: tuple[int, int]
    """That of the table's keys, and that of the topics."""
    table: OffsetTable
    topics: list[tuple[str, int, int]]
    """Each topic with its rows, counted from the group's first."""
    partitions: list[Partition | None]
    numbers: list[int]
    order: list[int] | None
    """The table's rows, topic by topic; None: the table has them in this order."""


class GroupReader:
    """Reads the groups. It remembers the partitions of each for the next scrape."""

    def __init__(self) -> None:
        self._layouts: dict[str, _Layout] = {}

    async def read(self, entries: Iterable[GroupEntry], topics: Topics, turns: Turns) -> GroupColumns:
        columns = GroupColumns()
        layouts: dict[str, _Layout] = {}
        found: list[Partition | None] = []
        offsets: list[int] = []
        work = 0
        for entry in entries:
            values = list(entry.offsets.values())
            layout = self._layouts.get(entry.group_id)
            version = entry.offsets.keys_version, topics.version
            if layout is None or layout.version != version or layout.table is not entry.offsets:
                columns.add(found, offsets)
                found, offsets, work = [], [], 0
                layout = await _lay_out(entry.offsets, version, topics, turns)
            layouts[entry.group_id] = layout
            if layout.order is not None:
                values = [values[row] for row in layout.order]
            first = len(columns.numbers)
            where = [(topic, first + start, first + stop) for topic, start, stop in layout.topics]
            columns.groups.append(GroupRows(entry.group_id, len(entry.group.members), where))
            columns.numbers += layout.numbers
            for at in range(0, len(values), PIECE):
                some = values[at : at + PIECE]
                found += layout.partitions[at : at + PIECE]
                offsets += [each.offset for each in some]
                work += len(some)
                if work >= PIECE:
                    columns.add(found, offsets)
                    found, offsets, work = [], [], 0
                    await turns()
            work += 1
        columns.add(found, offsets)
        self._layouts = layouts
        return columns


async def _lay_out(table: OffsetTable, version: tuple[int, int], topics: Topics, turns: Turns) -> _Layout:
    keys = list(table)
    rows: dict[str, list[int]] = {}
    for at in range(0, len(keys), PIECE):
        for row, key in enumerate(keys[at : at + PIECE], at):
            rows.setdefault(key.topic, []).append(row)
        await turns()
    order: list[int] = []
    partitions: list[Partition | None] = []
    where = []
    for name, these in rows.items():
        topic = topics.get(name)
        where.append((name, len(order), len(order) + len(these)))
        for at in range(0, len(these), PIECE):
            some = these[at : at + PIECE]
            order += some
            partitions += [topic.partition(keys[row].partition) if topic is not None else None for row in some]
            await turns()
    numbers = [keys[row].partition for row in order]
    return _Layout(version, table, where, partitions, numbers, None if order == [*range(len(order))] else order)
