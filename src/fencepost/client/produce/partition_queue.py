"""What the producer's queues are made of: batches, a queue per partition, the queues of a topic.

Data that the caller's threads and the send thread share; `queue.py` has the lock and says who may do what to it when.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fencepost.client.produce.ticket import Delivered, Settlement, Ticket, Unplaced
from fencepost.core.producers.inflight import Flight
from fencepost.errors import FencepostError, NotOwned
from fencepost.kernel import BatchBuilder, Budget, Headers, Lane, Slot
from fencepost.types import Milliseconds, TopicPartition

UNDESIGNATED: Final = -1
"""The index of a topic's queue of records that may go to any partition."""
_FIRST_CAPACITY: Final = 256
"""Bytes a queue's first batch starts with: it grows with what is queued (PROD-11)."""


class Batch(Settlement):
    """Records of one partition (or of none yet) that are sent, stored and settled together."""

    __slots__ = ("builder", "charged", "count", "deadline", "encoded", "opened", "parts", "queue", "roams", "whole")

    def __init__(self, lock: threading.Lock, queue: PartitionQueue, opened: float, deadline: float) -> None:
        super().__init__(lock)
        self.queue = queue  # changes once, when an undesignated batch gets its partition
        self.builder: BatchBuilder | None = None
        """Once it is sealed and until it is encoded; an open batch's builder is its queue's."""
        self.encoded: memoryview | None = None
        """The batch as it goes over the wire, made when it is first sent; the builder is gone then."""
        self.count = 0
        self.charged = 0
        self.opened = opened
        self.deadline = deadline
        self.roams = False
        """It came from the undesignated queue."""
        self.parts: list[Batch] | None = None
        """What it was split into, being too large for the server, or in the log in part; they answer its tickets."""
        self.whole: Batch | None = None
        """What it is a part of."""

    @property
    def topic_name(self) -> str:  # type: ignore[override]
        return self.queue.topic.name

    @property
    def partition(self) -> int:  # type: ignore[override]
        return self.queue.index

    def trouble(self) -> str:
        return self.queue.topic.trouble()

    @property
    def records_left(self) -> int:
        """Records that are not settled."""
        if self.settled:
            return 0
        if self.parts is not None:
            return sum(part.records_left for part in self.parts)
        if self.queue.open is self and (builder := self.queue.builder) is not None:
            return builder.count
        return self.count

    def outcome(self, ticket: Ticket) -> Delivered | FencepostError:
        if self.parts is None:
            return super().outcome(ticket)
        first = 0
        for part in self.parts:
            if ticket.index < first + part.count:
                return part.outcome(Ticket(part, ticket.index - first, ticket.timestamp))
            first += part.count
        raise AssertionError(f"index {ticket.index} in a batch of {self.count}")


def _deadline(batch: Batch) -> float:
    return batch.deadline


class PartitionQueue(Slot):
    """Batches of one partition, oldest first; index −1 is a topic's undesignated queue."""

    __slots__ = ("flight", "index", "last_size", "sealed", "topic")

    def __init__(self, topic: TopicQueues, index: int) -> None:
        super().__init__()
        self.topic = topic
        self.index = index
        self.sealed: list[Batch] = []  # a deque takes 700 bytes when empty, and most queues are (PROD-11)
        self.last_size = _FIRST_CAPACITY  # of the newest sealed batch: what the next one will probably need
        self.flight: Flight[Batch] | None = None
        """What was sent of it; the send thread's alone."""

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.index)

    @property
    def open(self) -> Batch | None:
        batch: Batch | None = self.batch
        return batch

    def first_to_expire(self) -> Batch | None:
        """For the send thread. The oldest, mostly; a batch that came from the undesignated queue may be older than what
        it stands behind."""
        sealed = tuple(self.sealed)  # at once: callers append to it
        if not sealed:
            return self.open
        if not self.topic.roaming:
            return sealed[0]
        return min([*sealed, *filter(None, [self.open])], key=_deadline)

    def __bool__(self) -> bool:
        return self.open is not None or bool(self.sealed)


class Waiting(NamedTuple):
    """A record that has no partition yet."""

    key: Any
    value: Any
    headers: Headers | None
    partition: int | None
    timestamp: Milliseconds
    ticket: Ticket
    charged: int
    deadline: float

    @property
    def records(self) -> int:
        return 1


class WaitingRows:
    """Rows of a table that have no partitions yet. They are encoded when these are known."""

    __slots__ = ("_encode", "charged", "deadline", "encoded", "error", "records", "ticket", "tickets")

    def __init__(
        self, ticket: Ticket, records: int, charged: int, deadline: float, encode: Callable[[int], list[EncodedRows]]
    ) -> None:
        self.ticket = ticket
        """Of the first batch, once there is one."""
        self.tickets = [ticket]
        """One of each batch."""
        self.records = records
        self.charged = charged
        self.deadline = deadline
        self.encoded: list[EncodedRows] | None = None
        self.error: Exception | None = None
        self._encode = encode

    def encode(self, partition_count: int) -> None:
        """Without the lock of the queues: it takes its time."""
        try:
            self.encoded = self._encode(partition_count)
        except Exception as error:  # noqa: BLE001 - a partition that does not exist, or the partitioner's: for the ticket
            self.error, self.encoded = error, []


class EncodedRows(NamedTuple):
    partition: int
    builder: BatchBuilder


class TopicQueues(Lane):
    __slots__ = (
        "name",
        "owned",
        "partition_count",
        "partitions",
        "roaming",
        "roaming_queue",
        "trouble",
        "unplaced",
        "waiting",
    )

    undesignated: PartitionQueue
    """Where records without a key and a partition go: `roaming_queue`, or the one partition that is owned."""

    def __init__(self, name: str, budget: Budget, trouble: Callable[[], str] = str) -> None:
        super().__init__(budget)
        self.name = name
        self.trouble = trouble
        """Says which connection failed last, if one did, for the message of whoever waited too long."""
        self.partition_count = 0
        """0: not known yet."""
        self.partitions: dict[int, PartitionQueue] = {}
        self.owned: frozenset[int] | None = None
        """The partitions that records without a partition may go to; None: to any."""
        self.undesignated = self.roaming_queue = PartitionQueue(self, UNDESIGNATED)
        self.waiting: deque[Waiting | WaitingRows] = deque()
        self.unplaced: Unplaced | None = None
        self.roaming = 0
        """Batches of the undesignated queue that are under way; the send thread's alone."""

    def know(self, partition_count: int) -> None:
        """The topic has so many partitions."""
        self.partition_count = partition_count
        mine = self._mine(partition_count)
        self.undesignated = self.queue(mine[0]) if len(mine) == 1 else self.roaming_queue

    def admit(self) -> None:
        """From now on `send` may find the partitions' open batches by itself; not before all that waited is in them."""
        self.set_slots(
            [self.partitions.get(index) if self.may_choose(index) else None for index in range(self.partition_count)]
        )

    def restrict(self, owned: frozenset[int] | None) -> None:
        """While these are owned, records go to no others unless the caller names the partition."""
        if owned != self.owned:
            self.owned = owned
            if self.partition_count:
                self.know(self.partition_count)
                self.admit()

    def may_choose(self, partition: int) -> bool:
        """Whether a record that names no partition may go there."""
        return self.owned is None or partition in self.owned

    def check_choice(self, partition: int) -> None:
        """Raise NotOwned if a record that names no partition must not go to the one that its key belongs to."""
        if self.owned is not None and partition not in self.owned:
            raise NotOwned(self.name, partition, self.owned, self.partition_count)

    def pick(self, turn: int, count: int) -> int:
        """One of `count` partitions for records without a key, each turn another one. NotOwned if what is owned does
        not exist."""
        if self.owned is None:
            return turn % count
        if not (mine := self._mine(count)):
            raise NotOwned(self.name, None, self.owned, count)
        return mine[turn % len(mine)]

    def _mine(self, count: int) -> list[int]:
        """What is owned, as far as the topic has it."""
        return sorted(self.owned.intersection(range(count))) if self.owned is not None else []

    def queue(self, partition: int) -> PartitionQueue:
        queue = self.partitions.get(partition)
        if queue is None:
            queue = self.partitions[partition] = PartitionQueue(self, partition)
            if partition < len(self.slots) and self.may_choose(partition):
                self.slots[partition] = queue
        return queue


class Lone(Settlement):
    """A record, or rows of a table, that failed before they had a batch."""

    __slots__ = ("count", "topic_name")

    partition = UNDESIGNATED

    def __init__(self, lock: threading.Lock, topic_name: str, count: int = 1) -> None:
        super().__init__(lock)
        self.topic_name = topic_name
        self.count = count
