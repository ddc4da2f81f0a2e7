"""Batches are filled here: which queue a record belongs to, and how it comes into that queue's open batch.

Everything here is done with the lock held: by the caller's threads, which send, and by the send thread, which moves
what had to wait for its topic's partitions (`waiting_room.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import Batch, PartitionQueue, TopicQueues
from fencepost.client.produce.record_size import RECORD_OVERHEAD, as_bytes
from fencepost.client.produce.ticket import Settlement, Ticket
from fencepost.clock import Clock
from fencepost.errors import FencepostError, SendFailed
from fencepost.kernel import HEADER_SIZE, BatchBuilder, Headers, Payload, partition_for_key
from fencepost.types import Milliseconds


class Filling:
    """What whoever fills batches has in common: the lock, and lists of what is not settled and of who has to send."""

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
        """Guards tickets, for moments."""
        self.unsettled: dict[Settlement, None] = {}
        self.active: dict[PartitionQueue, None] = {}
        """Queues that hold something, or had something when the send thread last looked."""
        self.needs_partitions = False
        """Where a record goes must not be left to chance: it may have to be sent again by a later life (IDEM-4)."""

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
                raise FencepostError("a record without a key needs its partition named, to be the same once more")
            else:
                topic.pick(0, count)
                return topic.undesignated
        if not 0 <= partition < count:
            raise SendFailed(
                f"there is no partition {partition}, the topic has {count}", persisted="no", topic=topic.name
            )
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

    def enqueue(self, queue: PartitionQueue, builder: BatchBuilder, deadline: float) -> Batch:
        if queue.open is not None:
            self.seal(queue)
        batch = Batch(self.settling, queue, self.clock.monotonic(), deadline)
        batch.builder, batch.count, batch.charged = builder, builder.count, builder.size
        queue.topic.charge(builder.size, queue)
        queue.sealed.append(batch)
        self.unsettled[batch] = None
        self.active[queue] = None
        self.wake()
        return batch

    def _open(self, queue: PartitionQueue) -> Batch:
        now = self.clock.monotonic()
        batch = Batch(self.settling, queue, now, now + self.options.delivery_timeout)
        queue.begin(batch, BatchBuilder(queue.last_size))
        queue.topic.charge(HEADER_SIZE, queue)
        self.unsettled[batch] = None
        if queue not in self.active:
            self.active[queue] = None
        if not queue.sealed:
            self.wake()
        return batch

    def _unopen(self, queue: PartitionQueue) -> None:
        """The first record could not be encoded: there is no batch after all."""
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
