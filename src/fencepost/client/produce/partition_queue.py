"""The parts of the producer's queues: batches, one queue per partition, and the queues of a topic.

The caller's threads and the send thread share them; `queues.py` says who may do what.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fencepost.client.produce.ticket import Settlement, Unplaced
from fencepost.core.producers.inflight import Flight
from fencepost.errors import NotOwned, SendFailed
from fencepost.kernel import BatchBuilder, Budget, Headers, Payload, Slot, TopicSlots
from fencepost.types import Milliseconds, TopicPartition

UNDESIGNATED: Final = -1
"""The index of a topic's queue of records that may go to any partition."""
NAME_THE_PARTITION: Final = "a producer with saved ids needs a key or a partition for every record: pass partition="
RECORD_OVERHEAD: Final = 36
"""An upper bound for the bytes of an encoded record beside key, value and headers."""
_HEADER_OVERHEAD: Final = 10
NOTHING: Final[Any] = ()
"""Stands in for a list that is empty, and cannot be changed by mistake."""
_FIRST_CAPACITY: Final = 128
"""Bytes allocated for a queue's first batch, which grows as needed (PROD-11)."""


class ProducerBatch(Settlement):
    """Records of one partition (or of none yet) that are sent, stored and settled together."""

    __slots__ = (
        "builder",
        "charged",
        "count",
        "deadline",
        "encoded",
        "opened",
        "queue",
        "routing",
        "was_undesignated",
    )

    def __init__(self, lock: threading.RLock, queue: PartitionQueue, opened: float, deadline: float) -> None:
        super().__init__(lock)
        self.queue = queue  # changes once, when an undesignated batch gets its partition
        self.builder: BatchBuilder | None = None
        """Set from sealing to encoding. The queue has the builder of its open batch."""
        self.encoded: memoryview | None = None
        """The bytes on the wire, encoded when the batch is first sent; the builder is then dropped."""
        self.count = 0
        self.charged = 0
        self.opened = opened
        self.deadline = deadline
        self.was_undesignated = False
        """It came from the undesignated queue."""
        self.routing: dict[int, int] | None = None
        """Set while the topic's partitions are unknown, if they decide where its records go (`routing.py`): the
        partitions that callers have named, by the record's index."""

    def wait(self, timeout: float | None) -> bool:
        if not self.settled and timeout != 0:
            self.queue.topic.before_waiting()
        return self.settled or super().wait(timeout)

    @property
    def topic_name(self) -> str:  # type: ignore[override]
        return self.queue.topic.name

    @property
    def partition(self) -> int:  # type: ignore[override]
        return self.queue.index

    @property
    def where(self) -> dict[str, Any]:
        """The fields of an error that concerns this batch."""
        partition = self.queue.index
        known = None if partition == UNDESIGNATED else partition
        return {"topic": self.queue.topic.name, "partition": known, "count": self.count}

    def trouble(self) -> str:
        return self.queue.topic.trouble()

    @property
    def records_left(self) -> int:
        """Records that are not settled."""
        if self.settled:
            return 0
        if self.queue.open is self and (builder := self.queue.builder) is not None:
            return builder.count
        return self.count


def _deadline(batch: ProducerBatch) -> float:
    return batch.deadline


class PartitionQueue(Slot):
    """Batches of one partition, oldest first; index −1 is a topic's undesignated queue."""

    __slots__ = ("flight", "index", "last_size", "sealed", "topic")

    def __init__(self, topic: TopicQueues, index: int) -> None:
        super().__init__()
        self.topic = topic
        self.index = index
        self.sealed: list[ProducerBatch] = NOTHING
        """Changed by the methods below. An empty list would take 56 bytes, and most queues are empty (PROD-11)."""
        self.last_size = _FIRST_CAPACITY  # of the newest sealed batch: the next one is probably as large
        self.flight: Flight[ProducerBatch] | None = None
        """Its sent batches. Only the send thread uses it."""

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.index)

    @property
    def open(self) -> ProducerBatch | None:
        batch: ProducerBatch | None = self.batch
        return batch

    def add(self, batch: ProducerBatch, at: int | None = None) -> None:
        """Add a sealed batch, behind the others or at this position."""
        if not self.sealed:
            self.sealed = [batch]
        else:
            self.sealed.insert(len(self.sealed) if at is None else at, batch)

    def take(self, at: int = 0) -> ProducerBatch:
        """Take out a sealed batch."""
        batch = self.sealed.pop(at)
        if not self.sealed:
            self.sealed = NOTHING
        return batch

    def first_to_expire(self) -> ProducerBatch | None:
        """Return the batch with the earliest deadline; called by the send thread. It is the oldest in the queue, unless
        a batch from the undesignated queue was put behind younger ones."""
        sealed = tuple(self.sealed)  # a copy: callers append to it
        if not sealed:
            return self.batch  # type: ignore[no-any-return]
        if not self.topic.undesignated_unsettled:
            return sealed[0]
        return min([*sealed, *filter(None, [self.open])], key=_deadline)

    @property
    def next_size(self) -> int:
        """Bytes of the batch that is sent next."""
        sealed = self.sealed
        if sealed:
            return sealed[0].charged
        builder = self.builder
        return 0 if builder is None else builder.size

    @property
    def is_followed_up(self) -> bool:
        """True if an earlier batch is in flight."""
        if self.index == UNDESIGNATED:
            return self.topic.undesignated_unsettled > 0
        return self.flight is not None and self.flight.in_flight > 0

    @property
    def is_mixed(self) -> bool:
        """True if a younger batch may stand before an older one: one without a key was put behind it."""
        return self.topic.undesignated_unsettled > 0

    def __bool__(self) -> bool:
        return self.open is not None or bool(self.sealed)


class WaitingRecord(NamedTuple):
    """A record that is to be serialized."""

    key: Any
    value: Any
    headers: Headers | None
    partition: int | None
    timestamp: Milliseconds
    charged: int
    deadline: float


class RowNumbers(NamedTuple):
    """Rows of a table that are side by side in a batch, in the batch's order."""

    first: int
    """The number of their chunk's first row in the table."""
    order: bytes | None
    """Numbers in the chunk, 32 bits each; None: the chunk's own order."""
    start: int
    stop: int

    @property
    def number(self) -> int:
        return self.stop - self.start

    def piece(self, start: int, stop: int) -> RowNumbers:
        """Return some of the rows, counted from the first."""
        return self._replace(start=self.start + start, stop=self.start + stop)

    def mark(self, marks: bytearray, mark: int) -> None:
        """Set the marks of the rows."""
        if self.order is None:
            marks[self.first + self.start : self.first + self.stop] = bytes([mark]) * self.number
        else:
            for row in memoryview(self.order).cast("i")[self.start : self.stop]:
                marks[self.first + row] = mark


class EncodedRows(NamedTuple):
    partition: int
    builder: BatchBuilder
    rows: RowNumbers


class TopicQueues(TopicSlots):
    """The queues of one topic, and its records that are to be serialized."""

    __slots__ = (
        "before_waiting",
        "name",
        "owned",
        "partition_count",
        "partitions",
        "trouble",
        "undesignated_queue",
        "undesignated_unsettled",
        "unplaced",
        "waiting",
    )

    undesignated: PartitionQueue
    """Takes records without key and partition: `undesignated_queue`, or the queue of the only owned partition.
    While the partitions are unknown, it takes all records."""

    def __init__(
        self,
        name: str,
        budget: Budget,
        trouble: Callable[[], str] = str,
        before_waiting: Callable[[], object] = bool,
    ) -> None:
        super().__init__(budget)
        self.name = name
        self.before_waiting = before_waiting
        """As in `Queues`."""
        self.trouble = trouble
        """Returns the last connection error, for messages about a timeout."""
        self.partition_count = 0
        """0: not known yet."""
        self.partitions: dict[int, PartitionQueue] = {}
        self.owned: frozenset[int] | None = None
        """The partitions that records without a partition may go to; None: to any."""
        self.undesignated = self.undesignated_queue = PartitionQueue(self, UNDESIGNATED)
        self.waiting: deque[WaitingRecord] = deque()
        self.unplaced: Unplaced | None = None
        self.undesignated_unsettled = 0
        """Unsettled batches that came from the undesignated queue. Only the send thread uses it."""

    def only_partition(self, count: int) -> int | None:
        """Return the partition that all records without a key go to, if there is only one."""
        mine = self._mine(count) if self.owned is not None else range(count)
        return mine[0] if len(mine) == 1 else None

    def know(self, partition_count: int) -> None:
        """Note the number of partitions."""
        self.partition_count = partition_count
        mine = self._mine(partition_count)
        self.undesignated = self.queue(mine[0]) if len(mine) == 1 else self.undesignated_queue

    def admit(self) -> None:
        """Let the native `send` find the partitions' open batches. All earlier records must be in them already."""
        self.set_slots(
            [self.partitions.get(index) if self.may_choose(index) else None for index in range(self.partition_count)]
        )

    def restrict(self, owned: frozenset[int] | None) -> None:
        """Send records that name no partition only to these partitions, while they are owned."""
        if owned != self.owned:
            self.owned = owned
            if self.partition_count:
                self.know(self.partition_count)
                self.admit()

    def may_choose(self, partition: int) -> bool:
        """Return whether a record that names no partition may go there."""
        return self.owned is None or partition in self.owned

    def check_choice(self, partition: int) -> None:
        """Raise NotOwned if a record's key chose a partition that is not owned."""
        if self.owned is not None and partition not in self.owned:
            raise NotOwned(self.name, partition, self.owned, self.partition_count)

    def pick(self, turn: int, count: int) -> int:
        """Return one of `count` partitions for records without a key, a different one each turn. Raise NotOwned if the
        owned partitions do not exist."""
        if self.owned is None:
            return turn % count
        if not (mine := self._mine(count)):
            raise NotOwned(self.name, None, self.owned, count)
        return mine[turn % len(mine)]

    def _mine(self, count: int) -> list[int]:
        """Return the owned partitions that exist."""
        return sorted(self.owned.intersection(range(count))) if self.owned is not None else []

    def queue(self, partition: int) -> PartitionQueue:
        queue = self.partitions.get(partition)
        if queue is None:
            queue = self.partitions[partition] = PartitionQueue(self, partition)
            if partition < len(self.slots) and self.may_choose(partition):
                self.slots[partition] = queue
        return queue


class EarlyFailure(Settlement):
    """A record, or rows of a table, that failed before they had a batch."""

    __slots__ = ("count", "topic_name")

    partition = UNDESIGNATED

    def __init__(self, lock: threading.RLock, topic_name: str, count: int = 1) -> None:
        super().__init__(lock)
        self.topic_name = topic_name
        self.count = count


def no_partition(partition: int, count: int, topic: str = "") -> SendFailed:
    return SendFailed(f"there is no partition {partition}, the topic has {count}", persisted="no", topic=topic)


def size_of(key: Any, value: Any, headers: Headers | None) -> int:
    """Return an upper bound of a record's encoded size, without encoding it."""
    size = RECORD_OVERHEAD
    if key is not None:
        size += _length(key, "key")
    if value is not None:
        size += _length(value, "value")
    if headers:
        for name, content in headers:
            size += _HEADER_OVERHEAD + _length(name, "header name")
            size += _length(content, "header value") if content is not None else 0
    return size


def _length(data: Any, what: str) -> int:
    if isinstance(data, bytes | bytearray):
        return len(data)
    if isinstance(data, str):
        return 3 * len(data)  # UTF-8 is at most that
    if isinstance(data, memoryview):
        return data.nbytes
    raise TypeError(f"the {what} must be bytes, str or None, not {type(data).__name__}")


def as_bytes(key: Payload) -> bytes | bytearray | memoryview:
    assert key is not None
    return key.encode() if isinstance(key, str) else key
