"""Lags of groups: how far each is behind, and how that was over the last hour.

A lag is the number of offsets from the committed one to the end, as `fencepost group describe` prints it. The end of a
partition that nobody has used since the server started is not known without opening its log, so the lag of its group is
only known to be at least that of the other partitions.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.core.groups.offsets import OffsetTable
from fencepost.server.net.turns import Turns
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.coordinators.group_memory import GroupEntry

_UNKNOWN: Final = -1
_AT_ONCE: Final = 200
"""Offsets that are looked at in one piece."""


class GroupLag(NamedTuple):
    known: int
    """The sum over the partitions whose ends are known."""
    closed: int = 0
    """Partitions whose ends are not."""
    partitions: int = 0
    """Partitions with a committed offset."""

    @property
    def exact(self) -> int | None:
        return None if self.closed else self.known


async def lag_of(broker: Broker, entry: GroupEntry, sees: Callable[[str], bool] | None = None) -> GroupLag:
    """Return the lag of a group without opening any log. `sees` tells if a topic counts; None: all do."""
    if len(entry.offsets) <= _AT_ONCE:
        return _sum(broker, entry.offsets, entry.offsets, sees)
    found, turns, every = GroupLag(0), Turns(), list(entry.offsets)
    for at in range(0, len(every), _AT_ONCE):
        more = _sum(broker, entry.offsets, every[at : at + _AT_ONCE], sees)
        found = GroupLag(*(one + other for one, other in zip(found, more, strict=True)))
        await turns()
    return found


def _sum(
    broker: Broker, offsets: OffsetTable, partitions: Iterable[TopicPartition], sees: Callable[[str], bool] | None
) -> GroupLag:
    known = closed = count = 0
    topics = broker.topics
    for where in partitions:
        if sees is not None and not sees(where.topic):
            continue
        committed, topic = offsets.get(where), topics.get(where.topic)
        partition = topic.partition(where.partition) if topic is not None else None
        if committed is None or partition is None:
            continue  # deleted in the meantime
        count += 1
        log = partition.log
        if log is None:
            closed += 1
        else:
            known += max(log.high_watermark - committed.offset, 0)
    return GroupLag(known, closed, count)


class LagHistory:
    """The lags of a limited number of groups in the last samples: one array of numbers per group."""

    def __init__(self, samples: int, most: int) -> None:
        self._samples = samples
        self._most = most
        self._count = 0
        """Samples so far."""
        self._kept: dict[str, array[int]] = {}
        """A ring per group; its place of a sample is the sample's number modulo the length."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, lags: Mapping[str, GroupLag], wanted: Collection[str] = ()) -> None:
        """Add a sample. If there are too many groups, those that are wanted are kept, then those with the largest
        lags."""
        chosen: Collection[str] = lags
        if len(lags) > self._most:
            asked = set(wanted)
            chosen = set(sorted(lags, key=lambda group: (group not in asked, -lags[group].known))[: self._most])
        for group in [group for group in self._kept if group not in chosen]:
            del self._kept[group]
        at = self._count % self._samples
        for group in chosen:
            ring = self._kept.get(group)
            if ring is None:
                ring = self._kept[group] = array("q", [_UNKNOWN]) * self._samples
            exact = lags[group].exact
            ring[at] = _UNKNOWN if exact is None else exact
        self._count += 1

    def of(self, group: str) -> list[int | None] | None:
        """Return a group's lag at each of the last samples, the oldest first: None where it was not known. Return None
        for a group that is not kept."""
        ring = self._kept.get(group)
        return None if ring is None else [None if lag == _UNKNOWN else lag for lag in self._in_order(ring)]

    def _in_order(self, ring: array[int]) -> Iterator[int]:
        kept = min(self._count, self._samples)
        return (ring[number % self._samples] for number in range(self._count - kept, self._count))
