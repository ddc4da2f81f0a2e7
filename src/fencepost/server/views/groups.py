"""Committed offsets and the lags of groups.

A lag is the number of offsets from the committed one to the end, as `fencepost group describe` prints it. The end of a
partition that nobody has used since the server started is not known without opening its log, so the lag of its group is
only known to be at least that of the other partitions. Offset and end are read in one turn, so a lag is never negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from fencepost.core.rows import lag_between
from fencepost.server.net.turns import Turns
from fencepost.server.views.partitions import PIECE
from fencepost.server.views.record_lag import LagSpan

if TYPE_CHECKING:
    from fencepost.server.coordinators.group_memory import GroupEntry
    from fencepost.server.storage.partition import Partition
    from fencepost.server.storage.topics import Topics
    from fencepost.types import Offset


class OffsetRow(NamedTuple):
    partition: int
    committed: int
    lag: int | None = None
    """None: the partition is closed."""
    records: int | None = None
    """The lag in records. None: the partition is closed, or they are not counted yet."""
    span: LagSpan | None = None
    """What must be counted to know `records`."""


def offset_row(partition: Partition, committed: Offset) -> OffsetRow:
    log = partition.log
    if log is None:
        return OffsetRow(partition.index, committed)
    lag, stable = lag_between(committed, log.high_watermark), log.last_stable_offset
    if committed >= log.dense_from and committed >= log.cleaned_offset:
        return OffsetRow(partition.index, committed, lag, lag_between(committed, stable))
    return OffsetRow(partition.index, committed, lag, None, LagSpan(log, committed, stable))


class GroupLag(NamedTuple):
    known: int
    """The sum over the partitions whose ends are known."""
    closed: int = 0
    """Partitions whose ends are not."""
    partitions: int = 0
    """Partitions with a committed offset."""
    committed_ms: int = -1
    """When the group last committed an offset of these."""

    @property
    def exact(self) -> int | None:
        return None if self.closed else self.known


class GroupRows(NamedTuple):
    name: str
    members: int
    topics: dict[str, list[OffsetRow]]
    committed_ms: int = -1

    @property
    def offsets(self) -> int:
        return sum(map(len, self.topics.values()))

    @property
    def lag(self) -> GroupLag:
        lags = [row.lag for rows in self.topics.values() for row in rows]
        known = [lag for lag in lags if lag is not None]
        return GroupLag(sum(known), len(lags) - len(known), len(lags), self.committed_ms)


async def read_groups(
    entries: Iterable[GroupEntry], topics: Topics, turns: Turns, sees: Callable[[str], bool] | None = None
) -> list[GroupRows]:
    """Read the committed offsets of these groups, in pieces. `sees` tells if a topic counts; None: all do."""
    found = []
    work = 0
    for entry in entries:
        of: dict[str, list[OffsetRow]] = {}
        newest = -1
        offsets = list(zip(entry.offsets, entry.offsets.values(), strict=True))
        for at in range(0, len(offsets), PIECE):
            some, last, topic = offsets[at : at + PIECE], None, None
            for (name, index), committed in some:
                if name != last:
                    last, topic = name, topics.get(name) if sees is None or sees(name) else None
                partition = topic.partition(index) if topic is not None else None
                if partition is not None:  # else it was deleted in the meantime
                    of.setdefault(name, []).append(offset_row(partition, committed.offset))
                    newest = max(newest, committed.committed_ms)
            work += len(some)
            if work >= PIECE:
                work = 0
                await turns()
        found.append(GroupRows(entry.group_id, len(entry.group.members), of, newest))
        work += 1
    return found
