"""Filling of batches: choose the queue of a record, and append the record to that queue's open batch.

All functions are called with the lock of the queues held: by the caller's threads in `send`, and by the send thread,
which moves the records that waited for their topic's partitions (`waiting_room.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch, TopicQueues
from fencepost.client.produce.ticket import Settlement, Ticket
from fencepost.clock import Clock
from fencepost.errors import FencepostError, SendFailed
from fencepost.kernel import HEADER_SIZE, BatchBuilder, Headers, Payload, partition_for_key
from fencepost.types import Milliseconds

RECORD_OVERHEAD: Final = 36
"""An upper bound for the bytes of an encoded record beside key, value and headers."""
_HEADER_OVERHEAD: Final = 10

NAME_THE_PARTITION: Final = "a producer with saved ids needs a key or a partition for every record: pass partition="


class Filling:
    """The lock of the queues, and the lists of unsettled batches and active queues that it guards."""

    def __init__(self, options: ProducerOptions, clock: Clock, wake: Callable[[], None]) -> None:
        self.options = options
        self.clock = clock
        self.wake = wake
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)
        """Memory may be free again."""
        self.all_settled = threading.Condition(self.lock)
        """Something is settled, or moved."""
        self.settling = threading.Lock()
        """Guards tickets; held only for moments."""
        self.unsettled: dict[Settlement, None] = {}
        self.active: dict[PartitionQueue, None] = {}
        """Queues that hold something, or did when the send thread last looked."""
        self.needs_partitions = False
        """No record's partition may be left to chance: a later run may have to send it again (IDEM-4)."""

    def queue_for(self, topic: TopicQueues, key: Any, partition: int | None) -> PartitionQueue:
        count = topic.partition_count
        is_named = partition is not None
        if partition is None:
            if self.options.partitioner is not None:
                partition = self.options.partitioner(None if key is None else bytes(as_bytes(key)), count)
            elif key is not None:
                partition = partition_for_key(as_bytes(key), count)
            elif count == 1:
                partition = 0
            elif self.needs_partitions:
                raise FencepostError(NAME_THE_PARTITION)
            else:
                topic.pick(0, count)
                return topic.undesignated
        if not 0 <= partition < count:
            raise no_partition(partition, count, topic.name)
        if not is_named:
            topic.check_choice(partition)
        return topic.queue(partition)

    def append(
        self,
        queue: PartitionQueue,
        key: Payload,
        value: Payload,
        headers: Headers | None,
        timestamp: Milliseconds,
        size: int,
    ) -> Ticket:
        batch, builder = queue.open, queue.builder
        if batch is None or builder is None:
            batch = self._open(queue)
        elif builder.size + size > self.options.batch_size:
            self.seal(queue)
            self.wake()
            batch = self._open(queue)
        try:
            index = queue.append(queue.topic, key, value, timestamp, headers)
        except BaseException:
            self._unopen(queue)
            raise
        return Ticket(batch, index, timestamp)

    def enqueue(self, queue: PartitionQueue, builder: BatchBuilder, deadline: float) -> ProducerBatch:
        """Add a complete batch behind what the queue holds."""
        if queue.open is not None:
            self.seal(queue)
        batch = ProducerBatch(self.settling, queue, self.clock.monotonic(), deadline)
        batch.builder, batch.count, batch.charged = builder, builder.count, builder.size
        queue.topic.charge(builder.size, queue)
        queue.sealed.append(batch)
        self.unsettled[batch] = None
        self.active[queue] = None
        self.wake()
        return batch

    def _open(self, queue: PartitionQueue) -> ProducerBatch:
        now = self.clock.monotonic()
        batch = ProducerBatch(self.settling, queue, now, now + self.options.delivery_timeout)
        queue.begin(batch, BatchBuilder(queue.last_size))
        queue.topic.charge(HEADER_SIZE, queue)
        self.unsettled[batch] = None
        if queue not in self.active:
            self.active[queue] = None
        if not queue.sealed:
            self.wake()
        return batch

    def _unopen(self, queue: PartitionQueue) -> None:
        """Remove the open batch again if its first record could not be encoded."""
        if queue.builder is not None and not queue.builder.count:
            assert queue.open is not None
            del self.unsettled[queue.open]
            queue.end()
            queue.topic.charge(-HEADER_SIZE, queue)

    def seal(self, queue: PartitionQueue) -> None:
        batch, builder = queue.open, queue.builder
        assert batch is not None
        assert builder is not None
        queue.end()  # from here on nothing is appended
        batch.builder = builder
        batch.count = builder.count
        batch.charged = builder.size
        queue.last_size = min(builder.size, self.options.batch_size) + RECORD_OVERHEAD
        queue.sealed.append(batch)


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
