"""Transactional ids, and open transactions in the logs: how far each holds readers back, and which ones hang.

A transaction hangs in a partition if the partition's table of producers has it as open, but no coordinator will end it:
the pid has no transactional id, or the id's transaction is over or does not know the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.core.rows import TransactionDetails
from fencepost.core.security.access import TRANSACTIONAL_ID_DESCRIBE
from fencepost.core.transactions import RESTING, TransactionMetadata, TransactionState
from fencepost.errors import ErrorCode
from fencepost.server.net.turns import paced
from fencepost.server.views.asking import HttpCaller, check
from fencepost.server.views.paging import Page, PagePlace, cut
from fencepost.types import Offset, Pid, TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog
    from fencepost.server.broker import Broker
    from fencepost.server.net.router import Fields
    from fencepost.server.views.topics import OpenInPartition

MOST_LOOKED_AT: Final = 1000
"""Partitions of one transaction that a list looks at: a transaction may have very many."""


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


def hanging(broker: Broker, undecided: Iterable[OpenInPartition]) -> Iterator[OpenInPartition]:
    """Yield those that hang. They are looked at again, because they may have ended since they were found."""
    for each in undecided:
        log = open_log(broker, each.where)
        entry = log.producers.get(each.pid) if log is not None else None
        still = entry is not None and entry.transaction_start == each.first_offset
        if still and is_hanging(broker, each.where, each.pid):
            yield each


# -- transactional ids ------------------------------------------------------------------------------------------


async def seen_transactions(
    caller: HttpCaller, find: str = "", *, only_open: bool = False
) -> list[TransactionMetadata]:
    """Return those whose names contain `find` and that the caller may describe, as ListTransactions does."""
    request = caller.request(Key.LIST_TRANSACTIONS)
    return [
        each
        async for each in paced(list(caller.broker.transactions))
        if not (only_open and each.state in RESTING)
        and find in each.name
        and request.sees(TRANSACTIONAL_ID_DESCRIBE, each.name)
    ]


async def list_transactions(caller: HttpCaller, place: PagePlace) -> Page[TransactionDetails]:
    rows, cursor = await cut(await seen_transactions(caller), lambda row: (row.name,), place)
    names = [row.name for row in rows]
    answer = await caller.ask(Key.DESCRIBE_TRANSACTIONS, transactional_ids=names)
    there = [row for row in answer["transaction_states"] if row["error_code"] == ErrorCode.NONE]
    return Page([_transaction(row) async for row in paced(there)], cursor)


async def describe_transaction(caller: HttpCaller, name: str) -> TransactionDetails:
    answer = await caller.ask(Key.DESCRIBE_TRANSACTIONS, transactional_ids=[name])
    [found] = answer["transaction_states"]
    check(found, f"transactional id {name!r}")
    return _transaction(found)


def _transaction(row: Fields) -> TransactionDetails:
    is_open = TransactionState(row["transaction_state"]) not in RESTING
    return TransactionDetails(
        row["transactional_id"],
        row["transaction_state"],
        row["producer_id"],
        row["transaction_start_time"] if is_open else None,
        row["producer_epoch"],
        row["transaction_timeout"],
        tuple(TopicPartition(topic["topic"], index) for topic in row["topics"] for index in topic["partitions"]),
    )
