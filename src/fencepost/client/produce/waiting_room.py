"""Records that must be serialized first: they wait, in order, until the send thread serializes and encodes them.

The user's code runs without the lock of the queues. Only the send thread appends then, which keeps the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import ProducerBatch, TopicQueues, WaitingRecord, size_of
from fencepost.client.produce.ticket import Moved, Run, Settlement, Ticket, Unplaced
from fencepost.clock import Clock
from fencepost.errors import FencepostError, RecordTooLarge
from fencepost.kernel import HEADER_SIZE, Headers
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.client.produce.queues import Queues


def _own_copy(data: Any) -> Any:
    """Return a copy of a buffer that may change, of the same type. A serializer's other objects are its caller's."""
    if isinstance(data, bytearray):
        return bytearray(data)
    return memoryview(data.tobytes()) if isinstance(data, memoryview) else data


class WaitingRoom:
    def __init__(self, queues: Queues, options: ProducerOptions, clock: Clock, trouble: Callable[[], str]) -> None:
        self._queues = queues
        self._options = options
        self._clock = clock
        self._trouble = trouble

    # --- the caller's threads ---

    def add(
        self,
        topic: TopicQueues,
        key: Any,
        value: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: Milliseconds,
        size: int,
    ) -> Ticket:
        """Keep a record; with the lock held. A buffer is copied: the caller may fill it again when `send` returns."""
        key, value = _own_copy(key), _own_copy(value)
        if headers is not None:
            headers = [(_own_copy(name), _own_copy(content)) for name, content in headers]
        deadline = self._clock.monotonic() + self._options.delivery_timeout
        record = WaitingRecord(key, value, headers, partition, timestamp, size, deadline)
        self._queues.to_be_placed(topic)
        if topic.unplaced is None:
            topic.unplaced = Unplaced(self._queues.settling, topic.name, self._trouble, self._queues.before_waiting)
            self._queues.unsettled[topic.unplaced] = None
        try:
            topic.charge(size)
        finally:  # without a call, in which a signal handler could raise
            topic.waiting += (record,)
        topic.unplaced.count = len(topic.waiting)
        return Ticket(topic.unplaced, len(topic.waiting) - 1, timestamp)

    # --- the send thread ---

    def serialize(self, topic: TopicQueues) -> None:
        """Serialize and encode the topic's records that wait."""
        with self._queues.lock:
            if topic.unplaced is None:
                return
            waiting, unplaced = self._take(topic)
        ready = [self._serialized(topic, record) for record in waiting]
        with self._queues.lock:
            self._end(topic, unplaced, [self._place(topic, record) for record in ready], waiting)
        unplaced.tell_moved()

    def fail(self, topic: TopicQueues, error: FencepostError) -> None:
        """Fail the topic's records that wait."""
        with self._queues.lock:
            if topic.unplaced is None:
                return
            waiting, unplaced = self._take(topic)
            early, _ = self._queues.fail_early(topic, error, len(waiting))
            self._end(topic, unplaced, [(early, at) for at in range(len(waiting))], waiting)
        unplaced.tell_moved()

    def _take(self, topic: TopicQueues) -> tuple[deque[WaitingRecord], Unplaced]:
        assert topic.unplaced is not None
        waiting, unplaced = topic.waiting, topic.unplaced
        topic.waiting, topic.unplaced = deque(), None
        return waiting, unplaced

    def _end(
        self,
        topic: TopicQueues,
        unplaced: Unplaced,
        places: list[tuple[Settlement, int]],
        waiting: deque[WaitingRecord],
    ) -> None:
        topic.charge(-sum(record.charged for record in waiting))
        unplaced.moved = Moved([Run(at, at + 1, *place) for at, place in enumerate(places)])
        self._queues.no_longer_unsettled(unplaced)

    def _serialized(self, topic: TopicQueues, record: WaitingRecord) -> WaitingRecord | Exception:
        options = self._options
        key, value = record.key, record.value
        try:
            if options.key_serializer is not None and key is not None:
                key = options.key_serializer(key)
            if options.value_serializer is not None and value is not None:
                value = options.value_serializer(value)
            if (size := size_of(key, value, record.headers)) + HEADER_SIZE > options.max_request_size:
                raise RecordTooLarge(
                    f"a record of about {size} bytes does not fit max_request_size={options.max_request_size}"
                )
        except Exception as error:  # noqa: BLE001 - of the serializer: for the ticket
            return error
        return record._replace(key=key, value=value)

    def _place(self, topic: TopicQueues, record: WaitingRecord | Exception) -> tuple[Settlement, int]:
        if isinstance(record, Exception):
            return self._queues.fail_early(topic, record, 1)
        key, value, headers, partition, timestamp, _, deadline = record
        try:
            queue = self._queues.queue_for(topic, key, partition)
            size = size_of(key, value, headers)
            placed = self._queues.append(queue, key, value, headers, timestamp, size, partition)
        except Exception as error:  # noqa: BLE001 - of the partitioner, or of encoding
            return self._queues.fail_early(topic, error, 1)
        batch = placed.settlement
        assert isinstance(batch, ProducerBatch)
        batch.deadline = min(batch.deadline, deadline)
        return batch, placed.index
