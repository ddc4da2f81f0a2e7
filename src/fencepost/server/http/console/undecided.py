"""Open transactions in the logs: how far each holds readers of committed records back, and which ones hang.

A transaction hangs in a partition if the partition's table of producers has it as open, but no coordinator will end it:
the pid has no transactional id, or the id's transaction is over or does not know the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.core.transactions import RESTING, TransactionMetadata
from fencepost.types import Offset, Pid, TopicPartition

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog
    from fencepost.server.broker import Broker

MOST_LOOKED_AT: Final = 1000
"""Partitions of one transaction that a list looks at: a transaction may have very many."""


class OpenInPartition(NamedTuple):
    """A transaction that is open in a partition."""

    where: TopicPartition
    pid: Pid
    first_offset: Offset


class AbortEffect(NamedTuple):
    """The change that the abort of a transaction makes in a partition."""

    where: TopicPartition
    first_offset: Offset | None
    """Of the transaction; None if it has written nothing here."""
    stable: Offset
    """The last stable offset: readers of committed records stop here now."""
    end: Offset
    """The high watermark: other readers stop here."""
    stable_after: Offset
    """The last stable offset after the abort, if nobody else writes meanwhile."""

    @property
    def held_back(self) -> int:
        return self.end - self.stable

    @property
    def holds(self) -> bool:
        """This transaction is the one for which readers wait here."""
        return self.first_offset is not None and self.first_offset <= self.stable < self.end


class HeldBack(NamedTuple):
    """The readers that a transaction holds back."""

    offsets: int
    """From its first offset to the end, over its partitions."""
    partitions: int
    is_whole: bool
    """False: it has more partitions than were looked at."""


def stable_after(undecided: Iterable[tuple[Pid, Offset]], pid: Pid, *, log_start: Offset, log_end: Offset) -> Offset:
    """Return the last stable offset after an abort marker of `pid` was appended at `log_end`. `undecided` are the open
    transactions, the lowest first."""
    first = next((start for other, start in undecided if other != pid), None)
    return Offset(log_end + 1) if first is None else max(log_start, first)


def effect_of_abort(where: TopicPartition, log: PartitionLog, pid: Pid) -> AbortEffect:
    entry = log.producers.get(pid)
    after = stable_after(log.producers.open_transactions(), pid, log_start=log.start_offset, log_end=log.end_offset)
    first = entry.transaction_start if entry is not None else None
    return AbortEffect(where, first, log.last_stable_offset, log.high_watermark, after)


def held_back(broker: Broker, transaction: TransactionMetadata, sees: Callable[[str], bool]) -> HeldBack:
    """Sum up how far the partitions of topics that the caller sees are held back. For the loop: it looks at open logs
    only."""
    offsets = partitions = 0
    for at, where in enumerate(transaction.partitions):
        if at == MOST_LOOKED_AT:
            return HeldBack(offsets, partitions, False)
        log = open_log(broker, where) if sees(where.topic) else None
        entry = log.producers.get(transaction.pid) if log is not None else None
        if log is not None and entry is not None and entry.transaction_start is not None:
            partitions += 1
            offsets += max(0, log.high_watermark - max(entry.transaction_start, log.start_offset))
    return HeldBack(offsets, partitions, True)


def open_log(broker: Broker, where: TopicPartition) -> PartitionLog | None:
    """Return the partition's log if it is open."""
    topic = broker.topics.get(where.topic)
    partition = topic.partition(where.partition) if topic is not None else None
    return partition.log if partition is not None else None


def is_hanging(broker: Broker, where: TopicPartition, pid: Pid) -> bool:
    """Tell if no coordinator will end the transaction that is open here, as WriteTxnMarkers judges it."""
    name = broker.transactions.name_of(pid)
    known = broker.transactions.get(name) if name is not None else None
    return known is None or known.pid != pid or known.state in RESTING or where not in known.partitions


def hanging(broker: Broker, undecided: Sequence[OpenInPartition]) -> Iterator[OpenInPartition]:
    """Yield those that hang. They are looked at again, because they may have ended since they were found."""
    for each in undecided:
        log = open_log(broker, each.where)
        entry = log.producers.get(each.pid) if log is not None else None
        still = entry is not None and entry.transaction_start == each.first_offset
        if still and is_hanging(broker, each.where, each.pid):
            yield each
